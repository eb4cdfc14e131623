package history

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestWhatIsElsewhereIsNoHistory of this region, whether conflicts are wanted or not.
func TestWhatIsElsewhereIsNoHistory(t *testing.T) {
	e := journal.Entry{ID: identity.Batch{Agent: "a", Boot: "b", SeqEnd: 9}, Outcome: journal.Elsewhere, SHA256: identity.Digest{1}, Bytes: 1, At: 5, MaxTime: 1, HomeRegion: "west"}
	for _, s := range []Selection{{}, {Conflicts: true}} {
		if e.Outcome = journal.Elsewhere; s.wants(&e) {
			t.Errorf("%+v has it", s)
		}
		if e.Outcome = journal.AuditedAccepted; !s.wants(&e) {
			t.Errorf("%+v does not have what is ours", s)
		}
	}
}
