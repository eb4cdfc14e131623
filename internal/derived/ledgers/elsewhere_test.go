package ledgers

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestWhatIsElsewhereIsNotCounted: a batch that another region counts leaves the ledger of its boot as it is.
func TestWhatIsElsewhereIsNotCounted(t *testing.T) {
	s := NewSet()
	id := identity.Batch{Agent: "a", Boot: "b", SeqEnd: 9}
	e := journal.Entry{ID: id, Outcome: journal.Elsewhere, SHA256: identity.Digest{1}, Bytes: 1, At: 5, MaxTime: 1, HomeRegion: "west"}
	s.Apply([]journal.Entry{e}, func(c Change) { t.Errorf("%+v", c) })
	if s.Boots() != 0 || s.Seen(id) || s.HasBoot(id.BootOf()) {
		t.Error("the ledgers know it")
	}
	e.Outcome = journal.AuditedAccepted
	n := 0
	s.Apply([]journal.Entry{e}, func(Change) { n++ })
	if n != 1 || !s.Seen(id) {
		t.Error("the ledgers do not know what is ours")
	}
}
