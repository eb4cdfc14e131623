package coordinator

import (
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// census is what a round of folding saw of all claims, for metrics. It is there on the coordinator that folds alone.
type census struct {
	at     time.Time
	counts map[censusKey]int
	oldest map[censusKey]int64 // when the oldest one came into its state, Unix nanoseconds
	// unreadable claims are of no region.
	unreadable int
	// unfolded is since when claims should be folded whose fold failed, Unix nanoseconds; 0: there are none.
	unfolded int64
}

type censusKey struct {
	region claims.Region
	state  claims.State
}

func newCensus(at time.Time) *census {
	return &census{at: at, counts: map[censusKey]int{}, oldest: map[censusKey]int64{}}
}

func (c *census) add(of claims.Claim) {
	k, since := censusKey{of.Home, of.State}, of.DurableAt
	if of.State == claims.Claimed {
		since = of.ClaimedAt
	}
	if n, there := c.oldest[k]; !there || since < n {
		c.oldest[k] = since
	}
	c.counts[k]++
}

// failed notes a boot whose settled claims should have been folded, and were not.
func (c *census) failed(settled []claims.Claim, horizon, idle time.Duration) {
	if since := dueSince(settled, horizon, idle); c.unfolded == 0 || since < c.unfolded {
		c.unfolded = since
	}
}

// dueSince is when a boot with these settled claims, at least one, became due to be folded: foldLeast of them had been settled for the
// horizon, or one of them was idle.
func dueSince(settled []claims.Claim, horizon, idle time.Duration) int64 {
	at := make([]int64, len(settled))
	for i, c := range settled {
		at[i] = c.DurableAt
	}
	slices.Sort(at)
	since := at[0] + int64(idle)
	if len(at) >= foldLeast {
		since = min(since, at[foldLeast-1]+int64(horizon))
	}
	return since
}
