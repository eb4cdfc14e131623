package queue

import (
	"bytes"
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/record"
)

// TestDamageUnderAnOpenQueue: bytes that changed on the disk after the start are not given out.
func TestDamageUnderAnOpenQueue(t *testing.T) {
	fsys := newDisk(41)
	q := open(t, fsys, testOptions())
	es := mustAppend(t, q, part(1, "a", 100), part(1, "b", 100))
	const segment = "/q/00000000000000000001.lmq"
	at := bytes.Index(fsys.read(t, segment), frameOf(es[0].Identity, "a", 100))
	if at < 0 {
		t.Fatal("the frame is not in the segment")
	}
	fsys.flip(t, segment, int64(at+50), 1)
	if b, err := q.Frame(es[0].No); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("damaged frame: %d bytes, %v", len(b), err)
	}
	wantFrame(t, q, es[1], frameOf(es[1].Identity, "b", 100))
}

// TestRequeueKeepsIdentityAndBytes: what may have been accepted under one identity must not
// count again under another.
func TestRequeueKeepsIdentityAndBytes(t *testing.T) {
	fsys := newDisk(42)
	q := open(t, fsys, testOptions())
	es := mustAppend(t, q, part(5, "a", 100), part(5, "b", 100))
	a, err := q.DeadLetter(es[0].No, HoldReason{Reason: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.NewBoot("test"); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, q, part(3, "c", 100))
	e, err := q.Requeue(a.ID)
	if err != nil || e.Identity != es[0].Identity || e.Spool != es[0].Spool {
		t.Fatalf("requeued %+v, %v; want %s", e, err, es[0].Identity)
	}
	q = open(t, fsys.crash(), testOptions())
	for _, p := range q.Pending(0, 10) {
		if p.No == e.No && p.Identity != es[0].Identity {
			t.Errorf("after a crash it is %s", p.Identity)
		}
	}
	wantFrame(t, q, e, frameOf(es[0].Identity, "a", 100))
}

// TestParkedBatchesCountAgainstTheBound: they are never removed by the queue, so new ones are
// refused once they fill the disk that it may use.
func TestParkedBatchesCountAgainstTheBound(t *testing.T) {
	o := testOptions()
	q := open(t, newDisk(43), o)
	for n := 0; ; n++ {
		es, err := q.Append(part(1, "a", 20_000))
		if errors.Is(err, ErrFull) {
			if st := q.Stats(); st.DiskBytes > o.MaxBytes || st.ParkedBytes < o.MaxBytes/2 {
				t.Errorf("refused at %+v", st)
			}
			return
		}
		if err != nil || n > 200 {
			t.Fatalf("%d batches were taken: %v; %+v", n, err, q.Stats())
		}
		if _, err := q.Park(es[0].No, HoldReason{Reason: "x"}); err != nil {
			t.Fatal(err)
		}
	}
}
