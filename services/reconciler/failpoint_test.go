package reconciler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/failstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestCrashAtRepairRecords ends a reconciler around each request for a repair record,
// at its first and its second hit. The next passes bring the record to what is so.
func TestCrashAtRepairRecords(t *testing.T) {
	points := 0
	for _, p := range failpoint.Points() {
		if p.Test != "services/reconciler" || strings.HasPrefix(p.Name, "reconciler.claims.") {
			continue
		}
		points++
		for nth := 1; nth <= 2; nth++ {
			w := &ailing{s: mem.New(nil), now: time.Unix(1_700_000_000, 0)}
			if err := failpoint.Arm(fmt.Sprintf("%s=%s@%d", p.Name, failpoint.Panic, nth)); err != nil {
				t.Fatal(err)
			}
			crashes := 0
			for day, cause := range []reconcile.Cause{
				reconcile.CauseMissing, reconcile.CauseMissing, reconcile.CauseCorrupt, reconcile.CauseMissing, "", "", reconcile.CauseMissing, "",
			} {
				w.bring(t, cause)
				for w.pass(t, p.Name) {
					if crashes++; crashes > 2 {
						t.Fatalf("%s: %d crashes", p.Name, crashes)
					}
				}
				w.check(t, fmt.Sprintf("%s at hit %d, day %d", p.Name, nth, day), cause)
			}
			_ = failpoint.Arm("")
			if crashes != 1 {
				t.Errorf("%s at hit %d: %d crashes", p.Name, nth, crashes)
			}
		}
	}
	if points != 8 {
		t.Errorf("%d points", points)
	}
}

// ailing is a bucket with one manifest, whose blob is well, missing or corrupt.
type ailing struct {
	s     *mem.Store
	now   time.Time
	m     accept.Manifest
	frame []byte
	since int64 // when it was first seen ill; 0 is well
}

func (w *ailing) bring(t *testing.T, cause reconcile.Cause) {
	t.Helper()
	ctx := context.Background()
	if w.frame == nil {
		w.frame = []byte("a frame")
		d := identity.Sum(w.frame)
		id := identity.Batch{Agent: "agent-1", Boot: "boot-1", SeqStart: 1, SeqEnd: 2}
		w.m = accept.Manifest{
			AuthorityID: "authority-1", Identity: id, FrameSHA256: d, FrameBytes: uint64(len(w.frame)), RawBlobKey: layout.Blob(d, 0),
			AcceptedAt: w.now.UnixNano(), CollectorID: "c1", WireVersion: 1, FrameVersion: 1, AttemptID: strings.Repeat("1", 32),
			RecordCount: 2, MinTime: 1, MaxTime: 2,
		}
		if _, err := w.s.Create(ctx, layout.Accepted(id), w.m.Marshal(), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	err := w.s.Delete(ctx, w.m.RawBlobKey)
	body := w.frame
	if cause == reconcile.CauseCorrupt {
		body = []byte("b frame")
	}
	if err == nil && cause != reconcile.CauseMissing {
		_, err = w.s.Create(ctx, w.m.RawBlobKey, body, objstore.PutOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(24 * time.Hour)
}

// pass is one look at the manifest; true when the process ended in it.
func (w *ailing) pass(t *testing.T, point string) (ended bool) {
	t.Helper()
	defer func() {
		switch r := recover(); r {
		case nil:
		case "failpoint " + point:
			ended = true
		default:
			panic(r)
		}
	}()
	r := &reconcile.Reconciler{Store: failstore.Wrap(w.s, "reconciler"), AuthorityID: "authority-1", ID: "r1", Now: func() time.Time { return w.now }}
	if _, err := r.Reconcile(context.Background(), layout.Accepted(w.m.Identity), reconcile.Options{Recheck: true}); err != nil {
		t.Fatal(err)
	}
	return false
}

func (w *ailing) check(t *testing.T, when string, cause reconcile.Cause) {
	t.Helper()
	b, _, err := w.s.Get(context.Background(), layout.Repair(w.m.Identity), objstore.GetOptions{})
	if cause == "" {
		w.since = 0
		if err == nil {
			t.Errorf("%s: all is well, and there is a record: %s", when, b)
		}
		return
	}
	if w.since == 0 {
		w.since = w.now.UnixNano()
	}
	if r, perr := reconcile.ParseRepair(b); err != nil || perr != nil || r.Cause != cause || r.FirstSeen != w.since {
		t.Errorf("%s: %+v, first seen %d, %v, %v; want %s since %d", when, r, r.FirstSeen, err, perr, cause, w.since)
	}
}
