package arrivals

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestWhatIsElsewhereArrivesNowhere: another region rolls the batch up.
func TestWhatIsElsewhereArrivesNowhere(t *testing.T) {
	e := journal.Entry{ID: identity.Batch{Agent: "a", Boot: "b", SeqEnd: 9}, Outcome: journal.Elsewhere, SHA256: identity.Digest{1}, Bytes: 1, At: 5, MaxTime: 1, HomeRegion: "west"}
	all := func(shard.ID) bool { return true }
	if got := split([]journal.Entry{e}, 1, all); len(got) != 0 {
		t.Errorf("%v", got)
	}
	e.Outcome = journal.Duplicate
	if got := split([]journal.Entry{e}, 1, all); len(got) != 1 {
		t.Errorf("%v", got)
	}
}
