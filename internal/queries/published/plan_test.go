package published_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/queries/published"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestPlansAreBounded: what is remembered of matchers is forgotten rather than grow, and
// the answers are the same: of those that find something, and of those that find nothing.
func TestPlansAreBounded(t *testing.T) {
	f := newFixture(t)
	r := f.reader(t, published.Config{})
	mint, maxt := f.first.StartMS(), (f.first + 1).EndMS()
	fullest := 0.0
	for k := range 150 {
		text := fmt.Sprintf("%d|%d|%s", k, 1_000_000+k, strings.Repeat("z", 3000))
		found := labels.MustNewMatcher(labels.MatchRegexp, "s", text)
		none := labels.MustNewMatcher(labels.MatchRegexp, "other", text)
		for range 2 {
			for m, want := range map[*labels.Matcher]int{found: 2, none: 0} {
				list, err := f.query(t, r, published.Limits{}).Select(t.Context(), mint, maxt, m)
				if err != nil || len(list) != want {
					t.Fatalf("%s: %d series, %v", m, len(list), err)
				}
			}
		}
		part, _ := r.PlanBytes()
		if part > 1 {
			t.Fatalf("after %d matchers a plan holds %.2f of its bound", k+1, part)
		}
		fullest = max(fullest, part)
	}
	if fullest < 0.9 {
		t.Errorf("a plan held at most %.2f of its bound: nothing was forgotten", fullest)
	}
}

// TestPlansFollowTheBlocks: a next generation is read from the next query on, by the same
// reader, and only a few plans are kept.
func TestPlansFollowTheBlocks(t *testing.T) {
	f := newFixture(t)
	r := f.reader(t, published.Config{})
	all := labels.MustNewMatcher(labels.MatchRegexp, "__name__", "m.*")
	half := f.batches[:1]
	for gen := uint64(2); gen < 24; gen++ {
		batches, want := f.batches, 2*fixtureSeries
		if gen%2 == 0 {
			batches, want = half, fixtureSeries
		}
		for h := range timegrid.Hour(2) {
			if _, err := f.publisher.Publish(t.Context(), f.first+h, gen, batches, timegrid.Raw); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			list, err := f.query(t, r, published.Limits{}).Select(t.Context(), f.first.StartMS(), (f.first + 1).EndMS(), all)
			if err != nil || len(list) != want {
				t.Fatalf("generation %d: %d series, want %d: %v", gen, len(list), want, err)
			}
		}
	}
	if _, n := r.PlanBytes(); n == 0 || n > 16 {
		t.Errorf("%d plans", n)
	}
}
