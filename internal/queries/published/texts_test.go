package published_test

import (
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestTextsAreKept: names and values of labels are the same whether they are kept from an earlier query or gathered,
// also when another generation counts, and a caller may change what it got.
func TestTextsAreKept(t *testing.T) {
	f := newFixture(t)
	kept := f.reader(t, published.Config{})
	half := f.batches[:1]
	for gen := uint64(1); gen < 6; gen++ {
		if gen > 1 {
			batches := f.batches
			if gen%2 == 0 {
				batches = half
			}
			for h := range timegrid.Hour(2) {
				if _, err := f.publisher.Publish(t.Context(), f.first+h, gen, batches, timegrid.Raw); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, ms := range [][]*labels.Matcher{nil, {labels.MustNewMatcher(labels.MatchEqual, "__name__", "m1")}, {labels.MustNewMatcher(labels.MatchRegexp, "s", "1.")}} {
			for range 2 {
				ask := func(r *published.Reader) (out [][]string) {
					q := f.query(t, r, published.Limits{})
					names, err := q.LabelNames(t.Context(), f.first.StartMS(), (f.first + 1).EndMS(), ms...)
					if err != nil {
						t.Fatal(err)
					}
					out = append(out, names)
					for _, n := range []string{"__name__", "agent", "s", "none"} {
						vs, err := q.LabelValues(t.Context(), n, f.first.StartMS(), (f.first + 1).EndMS(), ms...)
						if err != nil {
							t.Fatal(err)
						}
						out = append(out, vs)
					}
					for _, vs := range out {
						slices.Sort(vs)
					}
					return out
				}
				got, want := ask(kept), ask(f.reader(t, published.Config{}))
				if !slices.EqualFunc(got, want, slices.Equal) {
					t.Fatalf("generation %d, %v: %q, want %q", gen, ms, got, want)
				}
				for _, vs := range got {
					for i := range vs {
						vs[i] = "changed"
					}
				}
			}
		}
	}
}
