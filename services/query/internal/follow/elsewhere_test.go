package follow

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestWhatIsElsewhereIsShownNowhere: another region counts the batch, though a copy of its frame is here. It is not read, whether its
// entry is in a segment or in a folded file, and what this region counts is.
func TestWhatIsElsewhereIsShownNowhere(t *testing.T) {
	w, another := newWorld(t, 11, someTime), newWorld(t, 12, someTime)
	at := someTime.UnixMilli()
	ours := w.acceptAt(someBoot, 0, at-3, at-2)
	copied := another.acceptAt(identity.Boot{Agent: "a1", Boot: "b"}, 0, at-9, at-8)
	w.put(copied.manifest.RawBlobKey, copied.frame)
	entry := copied.manifest.Entry(journal.Elsewhere)
	entry.HomeRegion, entry.Generation = "west", 0
	w.must(journaltest.Append(t.Context(), w.store, "test", entry))
	for _, where := range []string{"a segment", "a folded file"} {
		w.tick(time.Second)
		w.must(w.follow.CatchUp(t.Context()))
		shown := w.shown()
		if !w.visible(ours, shown) {
			t.Errorf("%s: the batch of this region is not shown", where)
		}
		if w.visible(copied, shown) || w.told(copied) {
			t.Errorf("%s: the batch of another region is shown, or missed", where)
		}
		if st := w.follow.Status(); st.CompleteThrough.IsZero() {
			t.Errorf("%s: %+v", where, st)
		}
		w.fold()
		w.restart()
	}
}
