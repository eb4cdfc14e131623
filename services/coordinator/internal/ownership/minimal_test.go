package ownership

import (
	"fmt"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/shard"
)

// balanced is an assignment of k shards that workers came to one by one.
func balanced(k, n int) (targets, workers []string) {
	targets = make([]string, k)
	for i := range n {
		workers = append(workers, fmt.Sprintf("worker-%d", i))
		targets = Assign(targets, workers)
	}
	return targets, workers
}

// One worker more moves floor(K/n) shards, all of them to it: no fewer would balance, and
// who gives shards away keeps those that it wants most. One worker less moves its own shards only.
func TestNoChangeMovesMoreThanItMust(t *testing.T) {
	for _, k := range []int{4, 32, 100} {
		for n := 1; n <= 9; n++ {
			before, workers := balanced(k, n)
			came := append(slices.Clone(workers), "newcomer")
			after := Assign(before, came)
			moved := Moved(before, after)
			if len(moved) != k/(n+1) {
				t.Errorf("%d shards, %d workers and one more: %d moved, want %d", k, n, len(moved), k/(n+1))
			}
			for _, s := range moved {
				if after[s] != "newcomer" {
					t.Errorf("%d shards, %d workers and one more: shard %s went to %s", k, n, s, after[s])
				}
				for i, w := range after {
					if w == before[s] && before[i] == w && score(s, w) > score(shard.ID(i), w) {
						t.Errorf("%s kept shard %d and gave away %s, which it wants more", w, i, s)
					}
				}
			}
			if n == 1 {
				continue
			}
			gone := workers[n/2]
			left := slices.DeleteFunc(slices.Clone(workers), func(w string) bool { return w == gone })
			after = Assign(before, left)
			for _, s := range Moved(before, after) {
				if before[s] != gone {
					t.Errorf("%d shards, %d workers and one less: shard %s of %s moved", k, n, s, before[s])
				}
			}
		}
	}
}
