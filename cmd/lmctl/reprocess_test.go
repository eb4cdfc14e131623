package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	objmem "lightmetrics.dev/lightmetrics/pkg/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/work"
	"lightmetrics.dev/lightmetrics/pkg/work/mem"
)

var accepted = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

// site is a bucket with accepted batches and a coordinator's pending work.
type site struct {
	*testing.T
	bucket *objmem.Store
	work   *mem.Store
	now    time.Time
	runs   int
}

// newSite has 30 batches of three agents, one each 10 minutes from accepted on.
func newSite(t *testing.T) *site {
	s := &site{T: t, bucket: objmem.New(nil), now: accepted.Add(100 * time.Hour)}
	s.work = mem.New(func() time.Time { return s.now }, mem.Options{})
	for i := range 30 {
		at := accepted.Add(time.Duration(i) * 10 * time.Minute)
		id := identity.Batch{Agent: fmt.Sprint("agent-", i%3), Boot: "boot", SeqStart: uint64(i * 10), SeqEnd: uint64(i*10 + 9)}
		d := identity.Sum([]byte(fmt.Sprint(i)))
		m := accept.Manifest{AuthorityID: "authority", Identity: id, FrameSHA256: d, FrameBytes: 100, RawBlobKey: layout.Blob(d, 0), AcceptedAt: at.UnixNano(),
			CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "00000000000000000000000000000000", RecordCount: 10,
			MinTime: at.Add(-time.Minute).UnixNano(), MaxTime: at.Add(-time.Second).UnixNano()}
		if _, err := s.bucket.Create(t.Context(), layout.AcceptedByTime(at, id), m.Marshal(), objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// process is one run of lmctl.
func (s *site) process(t work.Table) *reprocess {
	s.runs++
	return &reprocess{store: s.bucket, queue: s.work, table: t, shards: 4, run: fmt.Sprintf("%016x", s.runs), page: 4,
		now: func() time.Time { return s.now }, tell: func(string) {}}
}

// entries counts the batches in the intake.
func (s *site) entries() map[string]int {
	s.Helper()
	got := map[string]int{}
	for id := range shard.ID(4) {
		err := objstore.ListAll(s.Context(), s.bucket, layout.IntakeShard(id), "", func(o objstore.Info) error {
			seg, err := intake.ReadSegment(s.Context(), s.bucket, o.Key)
			for _, e := range seg.Entries {
				if shard.Of(e.AgentID, 4) != id {
					s.Errorf("%s stands in shard %s", e.Identity(), id)
				}
				got[e.Identity().String()]++
			}
			return err
		})
		if err != nil {
			s.Fatal(err)
		}
	}
	return got
}

// mortal is a table whose process dies at its n-th checkpoint: after it, or instead of it.
type mortal struct {
	work.Table
	left  int
	after bool
}

type killed struct{}

func (m *mortal) Checkpoint(ctx context.Context, r work.Row, state []byte, hold time.Duration) (work.Row, error) {
	if m.left--; m.left > 0 {
		return m.Table.Checkpoint(ctx, r, state, hold)
	}
	if m.after {
		if _, err := m.Table.Checkpoint(ctx, r, state, hold); err != nil {
			return r, err
		}
	}
	panic(killed{})
}

func TestReprocess(t *testing.T) {
	s := newSite(t)
	order := reprocessOrder{From: accepted.Add(time.Hour), To: accepted.Add(3 * time.Hour), Agent: "agent-1"}
	count, err := s.process(s.work).count(t.Context(), order)
	if err != nil || count.Batches != 4 || len(s.entries()) != 0 {
		t.Fatalf("dry run: %+v, %v; %d in the intake", count, err, len(s.entries()))
	}
	id, _, done, err := s.process(s.work).do(t.Context(), order, "")
	if err != nil || done.Batches != 4 || len(s.entries()) != 4 {
		t.Fatalf("%s: %+v, %v; intake %v", id, done, err, s.entries())
	}
	// The same order again is a new job.
	if _, _, done, err = s.process(s.work).do(t.Context(), order, ""); err != nil || done.Batches != 4 {
		t.Fatalf("again: %+v, %v", done, err)
	}
	for b, n := range s.entries() {
		if n != 2 {
			t.Errorf("%s stands %d times in the intake", b, n)
		}
	}
}

// TestReprocessIsResumed: killed before and after every checkpoint, the next run goes on
// and gives at most one piece again.
func TestReprocessIsResumed(t *testing.T) {
	order := reprocessOrder{From: accepted, To: accepted.Add(24 * time.Hour)}
	pieces := 0
	for at := 1; ; at++ {
		for _, after := range []bool{false, true} {
			s := newSite(t)
			p := s.process(&mortal{Table: s.work, left: at, after: after})
			survived := func() (ok bool) {
				defer func() {
					if r := recover(); r != nil && r != any(killed{}) {
						panic(r)
					} else if r != nil {
						ok = false
					}
				}()
				_, _, _, err := p.do(t.Context(), order, "")
				if err != nil {
					t.Fatal(err)
				}
				return true
			}()
			if survived {
				if pieces = at; pieces < 8 {
					t.Fatalf("only %d pieces", pieces)
				}
				return
			}
			if _, _, _, err := s.process(s.work).do(t.Context(), order, ""); err == nil {
				t.Fatal("two runs at once")
			}
			s.now = s.now.Add(2 * reprocessHold)
			rows, err := allRows(t.Context(), s.work, "reprocess")
			if err != nil || len(rows) != 1 {
				t.Fatalf("pending %v, %v", rows, err)
			}
			_, o, done, err := s.process(s.work).do(t.Context(), reprocessOrder{}, rows[0].Log[len("reprocess/"):])
			if err != nil || done.Batches != 30 || !o.To.Equal(order.To) {
				t.Fatalf("killed at %d: then %+v of %+v, %v", at, done, o, err)
			}
			again := 0
			got := s.entries()
			for _, n := range got {
				again += n - 1
			}
			if len(got) != 30 || again > 4 {
				t.Fatalf("killed at %d: %d batches, %d twice", at, len(got), again)
			}
		}
	}
}

func TestReprocessRefuses(t *testing.T) {
	s := newSite(t)
	if _, _, _, err := s.process(s.work).do(t.Context(), reprocessOrder{}, "absent"); !errors.Is(err, errNoOrder) {
		t.Errorf("resume of nothing: %v", err)
	}
	for _, args := range [][]string{
		{"reprocess"},
		{"reprocess", "s3://bucket"},
		{"reprocess", "s3://bucket", "--from", "yesterday"},
		{"reprocess", "s3://bucket", "--from", "2026-03-02", "--to", "2026-03-01"},
		{"reprocess", "s3://bucket", "--from", "1970-01-01"},
		{"reprocess", "s3://bucket", "--from", "2026-03-02", "--resume", "x"},
		{"reprocess", "ftp://bucket", "--from", "2026-03-02"},
	} {
		if out, code := command(t, reprocessCommand, args...); code != cli.ExitUsage {
			t.Errorf("%v: exit %d: %s", args, code, out)
		}
	}
}
