package reconciler

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// removeFrame does what lmctl retention does: it writes down, then deletes.
func removeFrame(t *testing.T, s objstore.Store, m accept.Manifest, logged bool) {
	t.Helper()
	if logged {
		l := framelog.Log{AuthorityID: testAuthority, By: "test", Before: 1, RemovedAt: m.AcceptedAt, Frames: []framelog.Frame{{
			Identity: m.Identity, FrameSHA256: m.FrameSHA256, FrameBytes: m.FrameBytes, Keys: []string{m.RawBlobKey}}}}
		b, err := l.Marshal()
		must(t, err)
		create(t, s, l.Key(b), b)
	}
	must(t, s.Delete(bg, m.RawBlobKey))
}

// Frames that retention removed are no repairs, when an audit finds them, when the journal is read, and
// in the sweep of records that were opened before this was known; others that are gone are.
// Ledgers have the batches all the same.
func TestFramesRemovedByRetentionAreNoRepairs(t *testing.T) {
	for _, full := range []bool{false, true} {
		s := newStore()
		kept := acceptBatch(t, s, batch("h", 0, 9))
		gone := acceptBatch(t, s, batch("h", 10, 19))
		lost := acceptBatch(t, s, batch("h", 20, 29))
		removeFrame(t, s, gone, true)
		removeFrame(t, s, lost, false)
		// An older reconciler called it missing.
		old := quiet()
		old.Audit.AtStart = full
		first := start(t, old, s)
		c := first.client()
		eventually(t, "ledger", func() bool { return first.ledgerOf(c, "h").GetAcceptedThrough() == 29 })
		eventually(t, "indexed", func() bool { return indexed(t, s, kept, gone, lost) })
		must(t, first.stop())
		if _, err := s.Head(bg, layout.Repair(gone.Identity)); !errors.Is(err, objstore.ErrNotFound) {
			t.Errorf("full %v: the removed one: %v", full, err)
		}
		if _, err := s.Head(bg, layout.Repair(lost.Identity)); err != nil {
			t.Errorf("full %v: the lost one: %v", full, err)
		}
		if n := testutil.ToFloat64(first.m.ends.WithLabelValues("removed")); n < 1 {
			t.Errorf("full %v: %v ends of removed", full, n)
		}
		// It is written down later: the open record goes.
		create(t, s, lost.RawBlobKey, []byte("x"))
		removeFrame(t, s, lost, true)
		cfg := quiet()
		cfg.Repairs.Interval = 10 * time.Millisecond
		start(t, cfg, s)
		eventually(t, "healed", func() bool {
			_, err := s.Head(bg, layout.Repair(lost.Identity))
			return errors.Is(err, objstore.ErrNotFound)
		})
	}
}
