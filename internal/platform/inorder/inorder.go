// Package inorder does tasks on several processors and takes their results in the order of the tasks, so that what is made of
// them does not depend on who was faster.
package inorder

import (
	"fmt"
	"runtime"
	"sync"
)

// Pool is the processors that all callers of Do share: each has its own, and as many more as are free. Safe for concurrent
// use.
type Pool struct{ free chan struct{} }

// New makes a pool for so many processors; 0 is those of the process.
func New(processors int) *Pool {
	if processors <= 0 {
		processors = runtime.GOMAXPROCS(0)
	}
	return &Pool{free: make(chan struct{}, processors-1)}
}

// slotsEach is how many results of a worker may wait to be taken.
const slotsEach = 4

// Workers is the most workers of a Do, and Slots the most results that wait to be taken.
func (p *Pool) Workers() int { return cap(p.free) + 1 }

// Slots of a Do.
func (p *Pool) Slots() int { return slotsEach * p.Workers() }

// Do calls work for k from 0 to n-1 and, after each of them, take in the order of k, on the calling goroutine. No two calls
// with one worker number run at the same time; nor does work on a slot before the result in it is taken. Do ends with the first
// error of take, once no work runs any more. A panic of work becomes one of Do.
func (p *Pool) Do(n int, work func(worker, slot, k int), take func(slot, k int) error) error {
	r := &run{n: n, slots: make([]slot, min(p.Slots(), n)), work: work}
	r.moved.L = &r.mu
	var helpers sync.WaitGroup
	// Also after a panic of take: what helpers read is not the caller's any more afterwards.
	defer helpers.Wait()
	defer r.stop()
	for worker := 1; worker < min(p.Workers(), n); worker++ {
		select {
		case p.free <- struct{}{}:
		default:
			continue // others use it
		}
		helpers.Go(func() {
			defer func() { <-p.free }()
			for r.next(worker, true) {
			}
		})
	}
	for k := range n {
		if err := r.result(k); err != nil {
			panic(err)
		}
		if err := take(k%len(r.slots), k); err != nil {
			return err
		}
		r.free()
	}
	return nil
}

// run is one Do.
type run struct {
	n     int
	slots []slot
	work  func(worker, slot, k int)

	mu    sync.Mutex
	moved sync.Cond // a slot is done or free
	begun int       // tasks
	taken int       // results
	ended bool
}

type slot struct {
	done   bool
	failed error // of a panic
}

// next does the next task; false when there is none. Where no slot is free it waits, or else does nothing.
func (r *run) next(worker int, wait bool) bool {
	r.mu.Lock()
	for wait && !r.ended && r.begun < r.n && r.begun >= r.taken+len(r.slots) {
		r.moved.Wait()
	}
	if r.ended || r.begun == r.n || r.begun >= r.taken+len(r.slots) {
		r.mu.Unlock()
		return false
	}
	k := r.begun
	r.begun++
	r.mu.Unlock()
	at := k % len(r.slots)
	failed := r.do(worker, at, k)
	r.mu.Lock()
	r.slots[at] = slot{true, failed}
	r.mu.Unlock()
	r.moved.Broadcast()
	return true
}

func (r *run) do(worker, at, k int) (err error) {
	defer func() {
		if v := recover(); v != nil {
			stack := make([]byte, 4<<10)
			err = fmt.Errorf("inorder: task %d: %v\n%s", k, v, stack[:runtime.Stack(stack, false)])
		}
	}()
	r.work(worker, at, k)
	return nil
}

// result waits for the result of k, and does other tasks until then.
func (r *run) result(k int) error {
	for at := &r.slots[k%len(r.slots)]; ; {
		r.mu.Lock()
		done, failed := at.done, at.failed
		r.mu.Unlock()
		if done {
			return failed
		}
		if r.next(0, false) {
			continue
		}
		r.mu.Lock()
		for !at.done {
			r.moved.Wait()
		}
		r.mu.Unlock()
	}
}

// free gives the slot of the oldest result to a later task.
func (r *run) free() {
	r.mu.Lock()
	r.slots[r.taken%len(r.slots)] = slot{}
	r.taken++
	r.mu.Unlock()
	r.moved.Broadcast()
}

func (r *run) stop() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.moved.Broadcast()
}
