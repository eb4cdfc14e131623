package inorder_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/inorder"
)

// TestResultsAreTakenInOrder: with any number of tasks and processors each result is taken once, in the order of the tasks,
// and no worker and no slot is used twice at a time.
func TestResultsAreTakenInOrder(t *testing.T) {
	for _, processors := range []int{1, 2, 5} {
		p := inorder.New(processors)
		for _, n := range []int{0, 1, 2, 7, 300} {
			workers, slots := make([]atomic.Int32, p.Workers()), make([]int, p.Slots())
			busy := make([]atomic.Bool, p.Slots())
			next := 0
			err := p.Do(n, func(worker, slot, k int) {
				if workers[worker].Add(1) != 1 || busy[slot].Swap(true) {
					t.Errorf("task %d: worker %d or slot %d is in use", k, worker, slot)
				}
				slots[slot] = k
				workers[worker].Add(-1)
			}, func(slot, k int) error {
				if k != next || slots[slot] != k {
					t.Errorf("result %d of task %d, want %d", slots[slot], k, next)
				}
				busy[slot].Store(false)
				next++
				return nil
			})
			if err != nil || next != n {
				t.Errorf("%d of %d results, %v", next, n, err)
			}
		}
	}
}

// TestAnErrorEndsTheWork: no work runs after Do, and its processors are free again.
func TestAnErrorEndsTheWork(t *testing.T) {
	p := inorder.New(3)
	refused := errors.New("refused")
	for range 20 {
		var running atomic.Int32
		err := p.Do(1000, func(_, _, _ int) { running.Add(1); running.Add(-1) }, func(_, k int) error {
			if k == 5 {
				return refused
			}
			return nil
		})
		if !errors.Is(err, refused) || running.Load() != 0 {
			t.Fatalf("%v, %d still run", err, running.Load())
		}
	}
	seen := make([]atomic.Bool, p.Workers())
	gate := make(chan struct{})
	var waiting atomic.Int32
	if err := p.Do(p.Workers(), func(worker, _, _ int) {
		// All workers meet here, so none is missing.
		if seen[worker].Store(true); waiting.Add(1) == int32(p.Workers()) {
			close(gate)
		}
		<-gate
	}, func(_, _ int) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// TestAPanicIsTheCallers: also one of a helper, which would end the process.
func TestAPanicIsTheCallers(t *testing.T) {
	defer func() {
		if err, ok := recover().(error); !ok || !strings.Contains(err.Error(), "task 7: broken") {
			t.Errorf("%v", err)
		}
	}()
	_ = inorder.New(2).Do(20, func(_, _, k int) {
		if k == 7 {
			panic("broken")
		}
	}, func(_, _ int) error { return nil })
	t.Error("no panic")
}
