package published_test

import (
	"fmt"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
)

// TestChosenSeries: where whole indexes do not fit into their cache, what matchers found in them does, belongs to these
// matchers alone, and stays within the bound.
func TestChosenSeries(t *testing.T) {
	f := newFixture(t)
	const bound = 100_000
	r := f.reader(t, published.Config{IndexCache: bound})
	ask := func(pattern string) (series, samples int, st published.Stats) {
		q := f.query(t, r, published.Limits{})
		series, samples = f.count(t, q, labels.MustNewMatcher(labels.MatchRegexp, "s", pattern))
		return series, samples, q.Stats()
	}
	if series, _, st := ask("3"); series != 2 || st.IndexHits != 0 {
		t.Fatalf("%d series, %+v", series, st)
	}
	if series, samples, st := ask("3"); series != 2 || samples != 2*120 || st.Gets != 0 || st.IndexHits == 0 {
		t.Errorf("again: %d series, %d samples, %+v", series, samples, st)
	}
	if series, samples, st := ask("3|4|5"); series != 6 || samples != 6*120 || st.IndexHits != 0 {
		t.Errorf("by other matchers: %d series, %d samples, %+v", series, samples, st)
	}
	// Of so many series nothing is gained.
	for range 2 {
		if series, _, st := ask(".*"); series != 2*fixtureSeries || st.IndexHits != 0 {
			t.Errorf("%d series, %+v", series, st)
		}
	}
	for i := range 100 {
		ask(fmt.Sprint(i))
	}
	if held, _ := r.CacheBytes(); held > bound || held == 0 {
		t.Errorf("%d bytes are held, at most %d", held, bound)
	}
}
