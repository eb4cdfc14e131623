package ownership

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func ceil(a, b int) int { return (a + b - 1) / b }

// checkBalance: every shard has a live owner, and loads differ by at most one.
func checkBalance(t *testing.T, targets, workers []string) {
	t.Helper()
	load := map[string]int{}
	for _, w := range workers {
		load[w] = 0
	}
	for i, w := range targets {
		if _, ok := load[w]; !ok {
			t.Fatalf("shard %d: %q does not live", i, w)
		}
		load[w]++
	}
	loads := slices.Collect(maps.Values(load))
	if lo, hi := slices.Min(loads), slices.Max(loads); hi-lo > 1 {
		t.Fatalf("%d shards, %d workers: loads %d to %d", len(targets), len(workers), lo, hi)
	}
}

// TestOneWorkerMovesAtMostItsShare: thousands of joins and leaves, one at a time.
func TestOneWorkerMovesAtMostItsShare(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	changes := 0
	for _, k := range []int{1, 2, 4, 7, 31, 32, 33, 100, 256} {
		targets := make([]string, k)
		live := []string{"first"}
		targets = Assign(targets, live)
		for step := range 600 {
			n := len(live) // with the worker that goes
			if len(live) > 1 && rng.IntN(20) < len(live) {
				live = slices.Delete(slices.Clone(live), 0, 0)
				i := rng.IntN(len(live))
				live = slices.Delete(live, i, i+1)
			} else {
				live = append(slices.Clone(live), fmt.Sprintf("w%d", rng.IntN(1_000_000)*1000+step))
				n = len(live) // with the worker that came
			}
			slices.Sort(live)
			next := Assign(targets, live)
			checkBalance(t, next, live)
			if moved := len(Moved(targets, next)); moved > ceil(k, n) {
				t.Fatalf("%d shards, step %d: %d moved, at most %d may", k, step, moved, ceil(k, n))
			}
			if again := Assign(next, live); !slices.Equal(again, next) {
				t.Fatalf("%d shards, step %d: assigning again moves shards", k, step)
			}
			targets = next
			changes++
		}
	}
	if changes < 5000 {
		t.Errorf("only %d changes", changes)
	}
}

// TestManyWorkersMoveAtMostTheirShares: several come and go at once.
func TestManyWorkersMoveAtMostTheirShares(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 2))
	for range 2000 {
		k, n := 1+rng.IntN(200), 1+rng.IntN(12)
		var live []string
		for i := range n {
			live = append(live, fmt.Sprintf("w%02d", i))
		}
		targets := Assign(make([]string, k), live)
		checkBalance(t, targets, live)
		var next []string
		left := 0
		for _, w := range live {
			if rng.IntN(3) == 0 {
				left++
			} else {
				next = append(next, w)
			}
		}
		joined := rng.IntN(4)
		for i := range joined {
			next = append(next, fmt.Sprintf("x%02d", i))
		}
		if len(next) == 0 {
			if after := Assign(targets, next); !slices.Equal(after, targets) {
				t.Fatal("without workers shards moved")
			}
			continue
		}
		after := Assign(targets, next)
		checkBalance(t, after, next)
		// Who goes leaves at most ceil(K/n); who comes takes at most ceil(K/n) of those that stay.
		if moved := len(Moved(targets, after)); moved > left*ceil(k, n)+joined*ceil(k, len(next)) {
			t.Fatalf("%d shards, %d workers, %d left, %d joined: %d moved", k, n, left, joined, moved)
		}
	}
}

// TestAssignmentIsThatOfScores pins the score: another one would move shards at an upgrade.
func TestAssignmentIsThatOfScores(t *testing.T) {
	got := fmt.Sprint(Assign(make([]string, 8), []string{"a", "b", "c"}))
	const want = "[a c b c b b a c]"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if s := score(5, "worker-1"); s != 0xb834d46fe9b2d734 {
		t.Errorf("score %#x", s)
	}
}

func FuzzAssign(f *testing.F) {
	f.Add([]byte{3, 1, 2, 3}, uint8(2))
	f.Add([]byte{}, uint8(5))
	f.Fuzz(func(t *testing.T, owners []byte, n uint8) {
		if len(owners) == 0 || len(owners) > 300 {
			return
		}
		targets := make([]string, len(owners))
		for i, o := range owners {
			if o%16 > 0 {
				targets[i] = fmt.Sprintf("w%d", o%16)
			}
		}
		var live []string
		for i := range n%16 + 1 {
			live = append(live, fmt.Sprintf("w%d", i))
		}
		checkBalance(t, Assign(targets, live), live)
	})
}
