package gc

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestWhatIsElsewhereKeepsNothing: nobody promises the frame of a batch that another region counts, so its entry is no reference.
// A manifest that this region has of it is found by the proof.
func TestWhatIsElsewhereKeepsNothing(t *testing.T) {
	e := journal.Entry{ID: identity.Batch{Agent: "a", Boot: "b", SeqEnd: 9}, Outcome: journal.Elsewhere, SHA256: identity.Digest{1}, Bytes: 1, At: 5, MaxTime: 1, HomeRegion: "west"}
	n := &Names{full: true, limit: 10}
	n.add([]journal.Entry{e})
	if len(n.prints) != 0 || len(n.Witnesses()) != 0 {
		t.Errorf("%v, %v", n.prints, n.Witnesses())
	}
	e.Outcome = journal.Duplicate
	if n.add([]journal.Entry{e}); len(n.prints) != 1 {
		t.Errorf("%v", n.prints)
	}
}
