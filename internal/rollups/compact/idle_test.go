package compact_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// leave makes a compaction of the candidate that is committed and that nothing redirects to:
// its worker dies at that moment.
func (w *world) leave(st compact.Settings, c compact.Candidate) {
	w.t.Helper()
	p := w.tap()
	before := len(w.keys(layout.BlockManifestsHour(c.Name.Hour)))
	p.before = func(int, bool) error {
		if len(w.keys(layout.BlockManifestsHour(c.Name.Hour))) > before {
			return fmt.Errorf("%w: %w", objstore.ErrInvalid, errCrash)
		}
		return nil
	}
	if _, err := w.compactorOver(p, tapRefs{p}, st).Compact(w.t.Context(), c, 7); !errors.Is(err, errCrash) {
		w.t.Fatal(err)
	}
}

// release asks for what a scan finds orphaned, and gives it.
func (w *world) release() []string {
	w.t.Helper()
	seen, err := compact.NewScanner(w.store, authority).Scan(w.t.Context(), timegrid.Raw, hour0-10, hour0+10, func(shard.ID) bool { return true })
	w.must(err)
	var out []string
	for _, n := range seen.Orphaned() {
		out = append(out, n.SlotPrefix()[len(layout.BlockManifestsHour(n.Hour)):])
		w.must(w.publisher().Release(w.t.Context(), n))
	}
	return out
}

// A late hour that nothing can be merged with redirects to no compaction for long. That is no
// reason to keep one that it is no source of.
func TestOrphanedBesideALateHour(t *testing.T) {
	w, st := small(t)
	w.leave(st, w.candidate(st))
	w.clock.now = hour0.Start().Add(8 * time.Hour) // the longer span is due
	w.compactAll(st)
	w.roll(hour0, 1, timegrid.Raw)
	want := w.answers(w.view(), timegrid.Raw)
	if got := fmt.Sprint(w.release()); got != "[0000-raw.2h-]" {
		t.Errorf("orphaned: %s", got)
	}
	w.settled(st, "collected", want)
	if got := w.release(); len(got) > 0 {
		t.Errorf("%q is orphaned, and was collected", got)
	}
}

// Of two compactions of one span that share sources, the one to which sources redirect keeps
// them, whatever its generation is, and the other goes.
func TestOrphanedBesideAnotherOfTheSpan(t *testing.T) {
	w, st := small(t)
	want := w.answers(w.view(), timegrid.Raw)
	all := w.candidate(st)
	some := compact.Candidate{Name: all.Name}
	some.Name.Shard = 1
	some.Sources = slices.DeleteFunc(slices.Clone(all.Sources), func(s *catalog.Block) bool { return s.Name.Shard != 1 })
	given := some.Name
	given.Generation = 1
	if _, err := w.publisher().Abort(t.Context(), given, "test"); err != nil {
		t.Fatal(err)
	}
	w.leave(st, some)
	if r, err := w.compactor(st).Compact(t.Context(), all, 7); err != nil || r.Redirected != 4 || r.Block.Name.Generation != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := fmt.Sprint(w.release()); got != "[0001-raw.2h-]" {
		t.Errorf("orphaned: %s", got)
	}
	// Its worker was only paused: it turns nothing any more.
	r, err := w.compactor(st).Compact(t.Context(), some, 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range setsOf(w.view(), timegrid.Raw) {
		if s.Redirect == nil || s.Redirect.Name.Shard != 0 {
			t.Errorf("%s redirects to %v after %+v", s.Name.Key(), s.Redirect, r)
		}
	}
	w.settled(st, "collected", want)
}
