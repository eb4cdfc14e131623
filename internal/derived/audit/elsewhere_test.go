package audit

import (
	"crypto/rand"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestWhatIsElsewhereIsNotKnown: its entry says nothing of a manifest of this region, but that its boot is active here.
func TestWhatIsElsewhereIsNotKnown(t *testing.T) {
	e := journal.Entry{ID: identity.Batch{Agent: "a", Boot: "b", SeqEnd: 9}, Outcome: journal.Elsewhere, SHA256: identity.Digest{1}, Bytes: 1, At: 5, MaxTime: 1, HomeRegion: "west"}
	k, err := newKnown(rand.Reader, "", "", 10, true)
	must(t, err)
	k.add([]journal.Entry{e})
	if k.has(e.ID, identity.Digest{}) || len(k.boots()) != 1 {
		t.Errorf("known: %v, boots %v", k.has(e.ID, identity.Digest{}), k.boots())
	}
	e.Outcome = journal.Duplicate
	if k.add([]journal.Entry{e}); !k.has(e.ID, identity.Digest{}) {
		t.Error("what is ours is not known")
	}
}

// TestWhatIsElsewhereWantsNoDerivedKeys: there need not be a manifest that they would be of.
func TestWhatIsElsewhereWantsNoDerivedKeys(t *testing.T) {
	e := journal.Entry{ID: identity.Batch{Agent: "a", Boot: "b", SeqEnd: 9}, Outcome: journal.Elsewhere, SHA256: identity.Digest{1}, Bytes: 1, At: 5, MaxTime: 1, HomeRegion: "west"}
	for i := range indexes {
		w := &wanted{x: &indexes[i], groups: map[string]map[uint64]struct{}{}}
		if key, _ := w.of(&e); key != "" {
			t.Errorf("%q is wanted", key)
		}
	}
}
