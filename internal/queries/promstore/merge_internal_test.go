package promstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/queries/published"
)

// TestJoinUnsorted: without an order the same series are joined as in order.
func TestJoinUnsorted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	for range 200 {
		var ls []live.Series
		var ps []published.Series
		for i := range rng.IntN(20) {
			l := labels.FromStrings("__name__", "m", "i", fmt.Sprint(i))
			if rng.IntN(2) == 0 {
				ls = append(ls, live.Series{Labels: l})
			}
			if rng.IntN(2) == 0 {
				ps = append(ps, published.Series{Labels: l})
			}
		}
		rng.Shuffle(len(ls), func(i, j int) { ls[i], ls[j] = ls[j], ls[i] })
		got, want := joinUnsorted(ls, ps), join(ls, ps)
		slices.SortFunc(got, func(a, b merged) int { return labels.Compare(a.labels, b.labels) })
		if !slices.EqualFunc(got, want, func(a, b merged) bool {
			return labels.Equal(a.labels, b.labels) && a.live == b.live && a.published == b.published
		}) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}
