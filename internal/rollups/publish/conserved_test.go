package publish_test

import (
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
)

// Counts that do not add up are refused before the first request that writes: nothing of
// them is in the store.
func TestWhatIsNotConservedIsNotPublished(t *testing.T) {
	for what, spoil := range map[string]func(*publish.Publication){
		"a record is lost":               func(p *publish.Publication) { p.Counts.Published-- },
		"a record is made":               func(p *publish.Publication) { p.Counts.Published++ },
		"a record is counted twice":      func(p *publish.Publication) { p.Counts.Overlapped++ },
		"the inputs have other records":  func(p *publish.Publication) { p.Counts.Records++; p.Counts.Published++ },
		"the inputs are of another plan": func(p *publish.Publication) { p.Inputs = publication(2, 0).Inputs },
	} {
		w := newWorld(t)
		putPlan(t, w.store, 1)
		before := len(keys(t, w.store, ""))
		p := publication(1, 0, "x")
		spoil(&p)
		if _, err := w.publisher().Publish(t.Context(), p); !errors.Is(err, publish.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
		if n := len(keys(t, w.store, "")); n != before {
			t.Errorf("%s: %d objects are left", what, n-before)
		}
	}
}
