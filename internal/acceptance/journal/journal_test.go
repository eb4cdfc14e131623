package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

type seeded struct{ *rand.ChaCha8 }

func source(seed byte) seeded { return seeded{rand.NewChaCha8([32]byte{seed})} }

func entry(agent string, n uint64) Entry {
	return Entry{
		ID:      identity.Batch{Agent: agent, Boot: "boot", SeqStart: n * 10, SeqEnd: n*10 + 9},
		Outcome: Accepted, SHA256: identity.Sum(fmt.Appendf(nil, "%s/%d", agent, n)), Bytes: 100 + n,
		At: int64(1e18 + n), MinTime: int64(1e18 + n - 5), MaxTime: int64(1e18 + n),
	}
}

func newWriter(t *testing.T, s WriterStore, seed byte) *Writer {
	t.Helper()
	w, err := NewWriter(WriterConfig{
		Store: s, Rand: source(seed), Clock: func() int64 { return 7 },
		Opening: Opening{Writer: fmt.Sprint("writer ", seed), Role: RoleCollector, Authority: "authority"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// reader follows into a set.
type applied map[identity.Batch]int

func follow(t *testing.T, s FollowerStore, from Positions, folder *Folder) (*Follower, applied) {
	t.Helper()
	got := applied{}
	f, err := NewFollower(FollowerConfig{
		Store: s, Authority: "authority", From: from,
		Segment: func(_ context.Context, seg *Segment) error {
			for _, e := range seg.Entries {
				got[e.ID]++
			}
			if folder != nil {
				return folder.Add(seg)
			}
			return nil
		},
		Folded: func(_ context.Context, es []Entry) error {
			for _, e := range es {
				got[e.ID]++
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, got
}

func TestSegmentsReadBack(t *testing.T) {
	conflict := entry("a", 3)
	conflict.Outcome, conflict.Generation, conflict.HomeRegion, conflict.ClaimEpoch = Conflict, 2, "eu", 9
	for _, s := range []*Segment{
		{Position: Position{RunID{1}, 0}, Opening: &Opening{Writer: "w", Role: RoleReconciler, Authority: "a", At: -5}, Entries: []Entry{entry("b", 1), conflict, entry("a", 2)}},
		{Position: Position{RunID{2}, 1 << 40}, Closed: true},
		{Position: Position{RunID{2}, 1}, Fenced: true},
		{Position: Position{RunID{3}, 0}, Opening: &Opening{Writer: "w", Role: RoleSpooler, Authority: "a"}},
	} {
		b, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseSegment(b)
		if err != nil {
			t.Fatal(err)
		}
		again, err := got.Marshal()
		if err != nil || !bytes.Equal(b, again) {
			t.Errorf("%v: other bytes, %v", s.Position, err)
		}
		for i := range b {
			c := bytes.Clone(b)
			c[i] ^= 1
			if _, err := ParseSegment(c); !record.Opaque(err) {
				t.Errorf("byte %d of %v: %v", i, s.Position, err)
			}
		}
	}
	for _, bad := range []*Segment{
		{Position: Position{RunID{1}, 0}, Entries: []Entry{entry("a", 1)}},
		{Position: Position{RunID{1}, 1}},
		{Position: Position{RunID{1}, 0}, Opening: &Opening{Writer: "w", Role: RoleCollector, Authority: "a"}},
		{Position: Position{RunID{1}, 1}, Fenced: true, Entries: []Entry{entry("a", 1)}},
		{Position: Position{RunID{1}, 1}, Entries: []Entry{{}}},
	} {
		if _, err := bad.Marshal(); err == nil {
			t.Errorf("%+v was written", bad)
		}
	}
}

func TestFencedWriterOpensANewRun(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, s, 1)
	f, got := follow(t, s, Positions{}, nil)
	_, _ = w.Add(entry("a", 1))
	first, _, err := w.Flush(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := Fence(ctx, s, Position{first.Run, 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	if len(f.Runs()) != 0 {
		t.Error("a fenced run is still read")
	}
	n, _ := w.Add(entry("a", 2))
	second, done, err := w.Flush(ctx)
	if err != nil || done != n || second.Run == first.Run || second.Segment != 0 {
		t.Fatalf("%v, %d, %v", second, done, err)
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(ctx); err != nil || len(got) != 2 || len(f.Runs()) != 0 {
		t.Errorf("%d batches, %d runs, %v", len(got), len(f.Runs()), err)
	}
	if !f.Has(first) || !f.Has(second) {
		t.Error("positions are not known")
	}
}

// A head with another run than those that a late follower knows must not be taken for all of it.
func TestALateFollowerReadsFiles(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, s, 1)
	folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9), Retention: 10})
	if err != nil {
		t.Fatal(err)
	}
	from, err := folder.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := follow(t, s, from, folder)
	late, lateGot := follow(t, s, Positions{}, nil)
	if _, err := late.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(40) {
		_, _ = w.Add(entry("a", i))
		if _, _, err := w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Poll(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := folder.Fold(ctx, int64(i*20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if _, err := folder.Fold(ctx, int64(1000+i*20)); err != nil {
			t.Fatal(err)
		}
	}
	page, err := s.List(ctx, listAll(layout.JournalPrefix))
	if err != nil || len(page.Objects) > 10 {
		t.Errorf("%d objects are left, %v", len(page.Objects), err)
	}
	if _, err := late.Poll(ctx); err != nil || len(lateGot) != 40 {
		t.Errorf("%d batches, %v", len(lateGot), err)
	}
	fresh, freshGot := follow(t, s, Positions{}, nil)
	if _, err := fresh.Poll(ctx); err != nil || len(freshGot) != 40 {
		t.Errorf("%d batches, %v", len(freshGot), err)
	}
	if len(fresh.Runs()) != 0 {
		t.Errorf("runs are left: %+v", fresh.Runs())
	}
}

func TestAForeignAuthorityStopsAPoll(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, s, 1)
	_, _ = w.Add(entry("a", 1))
	if _, _, err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	f, err := NewFollower(FollowerConfig{Store: s, Authority: "another", Segment: func(context.Context, *Segment) error { return nil },
		Folded: func(context.Context, []Entry) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(ctx); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

// A run that was fenced needs no closing, and no run is opened only to be closed.
func TestClosingAFencedRun(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, s, 1)
	_, _ = w.Add(entry("a", 1))
	first, _, err := w.Flush(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := Fence(ctx, s, Position{first.Run, 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(ctx); err != nil || w.Open() {
		t.Fatalf("open %v, %v", w.Open(), err)
	}
	page, err := s.List(ctx, listAll(layout.JournalPrefix))
	if err != nil || len(page.Objects) != 2 {
		t.Errorf("%d objects, %v", len(page.Objects), err)
	}
}

// A fenced run is folded to its end, its segments go, and the fence stays.
func TestFencedRunsAreFolded(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9), Retention: 10})
	if err != nil {
		t.Fatal(err)
	}
	f, _ := follow(t, s, Positions{}, folder)
	w := newWriter(t, s, 1)
	_, _ = w.Add(entry("a", 1))
	at, _, err := w.Flush(ctx)
	if err != nil {
		t.Fatal(err)
	}
	fence := Position{at.Run, 1}
	if err := Fence(ctx, s, fence); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range int64(4) {
		if _, err := folder.Fold(ctx, i*20); err != nil {
			t.Fatal(err)
		}
	}
	head := folder.Head()
	run := head.Run(at.Run)
	if run == nil || run.Ended == 0 || !run.Fenced || run.Folded != 2 || run.Deleted != 2 {
		t.Errorf("folded as %+v", run)
	}
	page, err := s.List(ctx, listAll(layout.JournalPrefix+"run="))
	if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != fence.Key() {
		t.Errorf("left are %+v, %v", page.Objects, err)
	}
	if page, err := s.List(ctx, listAll(layout.JournalOpenPrefix)); err != nil || len(page.Objects) != 0 {
		t.Errorf("open are %+v, %v", page.Objects, err)
	}
	if p, err := f.Poll(ctx); err != nil || len(p.Positions.Runs) != 0 {
		t.Errorf("still followed: %+v, %v", p.Positions, err)
	}
}

// A closing segment whose outcome is unknown may turn out to be behind a fence: then nothing is left to write.
func TestAFenceEndsARunThatWasClosing(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, &unanswered{Store: s, key: 1}, 1)
	_, _ = w.Add(entry("a", 1))
	first, _, err := w.Flush(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(ctx); !errors.Is(err, objstore.ErrUnknown) {
		t.Fatal(err)
	}
	if err := Fence(ctx, s, Position{first.Run, 1}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.Flush(ctx); err != nil || w.Open() || w.Waiting() > 0 {
		t.Errorf("%v, open %v", err, w.Open())
	}
}

// unanswered loses the answer to the create of one segment, applied or not.
type unanswered struct {
	*mem.Store
	key     uint64
	applied bool
}

func (u *unanswered) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	if _, n, err := layout.ParseJournalSegment(key); err == nil && n == u.key {
		u.key = ^uint64(0)
		if u.applied {
			_, _ = u.Store.Create(ctx, key, b, o)
		}
		return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnknown}
	}
	return u.Store.Create(ctx, key, b, o)
}

// hooked calls a function before a replace, or after a read, once for each key.
type hooked struct {
	*mem.Store
	before, after map[string]func()
}

func hook(hooks map[string]func(), key string) {
	if f := hooks[key]; f != nil {
		delete(hooks, key)
		f()
	}
}

func (h *hooked) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	b, i, err := h.Store.Get(ctx, key, o)
	hook(h.after, key)
	return b, i, err
}

func (h *hooked) Head(ctx context.Context, key string) (objstore.Info, error) {
	i, err := h.Store.Head(ctx, key)
	hook(h.after, key)
	return i, err
}

func (h *hooked) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	hook(h.before, key)
	return h.Store.Replace(ctx, key, b, etag, o)
}

// foldedAway is a store whose run has segments 0 and 1 folded and deleted, with the writer and the folder.
func foldedAway(t *testing.T) (*mem.Store, *Writer, *Folder, *Follower, Position) {
	t.Helper()
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, s, 1)
	folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9)})
	if err != nil {
		t.Fatal(err)
	}
	feeder, _ := follow(t, s, Positions{}, folder)
	var at Position
	for i := range uint64(2) {
		_, _ = w.Add(entry("a", i))
		if at, _, err = w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	foldAll(t, feeder, folder)
	return s, w, folder, feeder, at
}

func foldAll(t *testing.T, feeder *Follower, folder *Folder) {
	t.Helper()
	if _, err := feeder.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := folder.Fold(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
	}
}

// A fence that came late, into a place where a segment was folded and deleted, is no end of the run, whose
// writer goes on: neither if the poll reads it, nor if a hint makes the follower read it after the poll's head.
func TestALateFenceIsNoEnd(t *testing.T) {
	for name, hinted := range map[string]bool{"read by the poll": false, "read by a hint": true} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			mems, w, folder, feeder, at := foldedAway(t)
			s := &hooked{Store: mems, after: map[string]func(){}}
			head := folder.Head()
			f, got := follow(t, s, head.Positions(), nil)
			if _, err := f.Poll(ctx); err != nil {
				t.Fatal(err)
			}
			fold := func(n uint64) {
				_, _ = w.Add(entry("a", n))
				if _, _, err := w.Flush(ctx); err != nil {
					t.Fatal(err)
				}
				foldAll(t, feeder, folder)
			}
			late := func() {
				fold(2)
				if err := Fence(ctx, mems, Position{at.Run, 2}); err != nil {
					t.Fatal(err)
				}
			}
			if hinted {
				s.after[layout.JournalHeadKey] = func() {
					late()
					if known, err := f.Read(ctx, Position{at.Run, 2}); err != nil || !known {
						t.Fatal(known, err)
					}
				}
			} else {
				late()
			}
			if _, err := f.Poll(ctx); err != nil {
				t.Fatal(err)
			}
			_, _ = w.Add(entry("a", 3))
			if _, _, err := w.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Poll(ctx); err != nil || got[entry("a", 3).ID] == 0 || got[entry("a", 2).ID] == 0 {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

// A folder that slept has segments of a run that others have folded, deleted and forgotten meanwhile. It must not
// take the run up again: the head would have a run that never ends.
func TestAFolderThatSleptTakesUpNoForgottenRun(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	folders := make([]*Folder, 2)
	feeders := make([]*Follower, 2)
	for i := range folders {
		f, err := NewFolder(FolderConfig{Store: s, Rand: source(byte(8 + i))})
		if err != nil {
			t.Fatal(err)
		}
		f.bounds.forgetAfter = 1
		feeders[i], _ = follow(t, s, Positions{}, f)
		folders[i] = f
	}
	w := newWriter(t, s, 1)
	_, _ = w.Add(entry("a", 1))
	gone, _, err := w.Flush(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range feeders {
		if _, err := f.Poll(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for n := range uint64(3) {
		if err := w.Close(ctx); err != nil {
			t.Fatal(err)
		}
		foldAll(t, feeders[0], folders[0])
		_, _ = w.Add(entry("b", n))
		if _, _, err := w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if head := folders[0].Head(); head.Run(gone.Run) != nil || head.Forgotten == 0 {
		t.Fatalf("not forgotten: %+v", head)
	}
	for range 4 { // the first ones find that the head is not theirs
		_, _ = folders[1].Fold(ctx, 9)
		if _, err := feeders[1].Poll(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if head := folders[1].Head(); head.Run(gone.Run) != nil || folders[1].Waiting() > 0 {
		t.Errorf("%d entries wait, the head is %+v", folders[1].Waiting(), head)
	}
}

// A create of segment 0 that lands after the segment was folded and deleted brings back an opening that every
// poll would list.
func TestAnOpeningThatCameBackIsSwept(t *testing.T) {
	ctx := t.Context()
	s, w, folder, feeder, at := foldedAway(t)
	b, err := (&Segment{Position: Position{Run: at.Run}, Opening: &Opening{Writer: "writer 1", Role: RoleCollector, Authority: "authority"}, Entries: []Entry{entry("a", 0)}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, Position{Run: at.Run}.Key(), b, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := folder.Sweep(ctx, 2); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(ctx, listAll(layout.JournalOpenPrefix))
	if err != nil || len(page.Objects) != 0 {
		t.Errorf("open are %+v, %v", page.Objects, err)
	}
	// One that is not folded yet stays.
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	_, _ = w.Add(entry("a", 5))
	if _, _, err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if err := folder.Sweep(ctx, 2); err != nil {
		t.Fatal(err)
	}
	foldAll(t, feeder, folder)
	f, got := follow(t, s, Positions{}, nil)
	if _, err := f.Poll(ctx); err != nil || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

// A folder that sweeps while another one is between its files and its move leaves those files.
func TestASweepLeavesAMoveThatIsUnderWay(t *testing.T) {
	ctx := t.Context()
	mems, w, sweeper, _, _ := foldedAway(t)
	s := &hooked{Store: mems, before: map[string]func(){}}
	slow, err := NewFolder(FolderConfig{Store: s, Rand: source(8)})
	if err != nil {
		t.Fatal(err)
	}
	from, err := slow.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	feeder, _ := follow(t, s, from, slow)
	_, _ = w.Add(entry("a", 7))
	if _, _, err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := feeder.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	s.before[layout.JournalHeadKey] = func() { // of the replace: the files are there
		if err := sweeper.Sweep(ctx, 5); err != nil {
			t.Fatal(err)
		}
		if _, err := sweeper.Fold(ctx, 6); err != nil {
			t.Fatal(err)
		}
	}
	if moved, err := slow.Fold(ctx, 7); err != nil || !moved {
		t.Fatal(moved, err)
	}
	f, got := follow(t, mems, Positions{}, nil)
	if _, err := f.Poll(ctx); err != nil || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

// A segment whose answer was lost is folded and deleted before its writer asks again. What is then created must be
// the same bytes, because nobody reads them.
func TestASegmentIsSentAgainAsItWas(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	u := &unanswered{Store: s, key: 1, applied: true}
	w := newWriter(t, u, 1)
	folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9)})
	if err != nil {
		t.Fatal(err)
	}
	feeder, _ := follow(t, s, Positions{}, folder)
	for i := range uint64(2) {
		_, _ = w.Add(entry("a", i))
		if _, _, err := w.Flush(ctx); (err != nil) != (i == 1) {
			t.Fatal(err)
		}
	}
	foldAll(t, feeder, folder)
	third, _ := w.Add(entry("a", 2))
	for done := uint64(0); done < third; {
		if _, done, err = w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	f, got := follow(t, s, Positions{}, nil)
	if _, err := f.Poll(ctx); err != nil || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

// What a caller does not need of the folded files is not read, and counts as applied.
func TestFilesThatAreNotNeededAreSkipped(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, s, 1)
	folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9), Retention: 10})
	if err != nil {
		t.Fatal(err)
	}
	from, err := folder.Load(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := follow(t, s, from, folder)
	for i := range uint64(3) {
		_, _ = w.Add(entry("a", i))
		if _, _, err := w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Poll(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := folder.Fold(ctx, int64(i*20)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := folder.Fold(ctx, 1000); err != nil { // deletes the segments
		t.Fatal(err)
	}
	late, got := follow(t, s, Positions{}, nil)
	old := entry("a", 1).MaxTime
	late.cfg.Skip = func(s Span) bool { return s.MaxTime <= old }
	p, err := late.Poll(ctx)
	if err != nil || len(got) != 1 || got[entry("a", 2).ID] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	if r, ok := p.Positions.Find(late.Runs()[0].Run); !ok || r.Next != 3 {
		t.Errorf("positions %+v", p.Positions)
	}
}

// A follower that begins in the middle of a run knows whose run it is, folded or not.
func TestOpeningsOfRunsThatAreFollowedFromAPosition(t *testing.T) {
	for _, folded := range []bool{false, true} {
		ctx, s := t.Context(), mem.New(nil)
		w := newWriter(t, s, 1)
		folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9), Retention: 10})
		if err != nil {
			t.Fatal(err)
		}
		from, err := folder.Load(ctx)
		if err != nil {
			t.Fatal(err)
		}
		f, _ := follow(t, s, from, folder)
		_, _ = w.Add(entry("a", 1))
		if _, _, err := w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		p, err := f.Poll(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if folded {
			for i := range 3 {
				if _, err := folder.Fold(ctx, int64(i*20)); err != nil {
					t.Fatal(err)
				}
			}
		}
		late, got := follow(t, s, p.Positions, nil)
		if _, err := late.Poll(ctx); err != nil || len(got) != 0 {
			t.Errorf("%v, %v", got, err)
		}
		if runs := late.Runs(); len(runs) != 1 || runs[0].Opening == nil || runs[0].Opening.Writer != "writer 1" {
			t.Errorf("folded %v: %+v", folded, runs)
		}
	}
}

// The head names a bounded number of runs that ended, the latest ones, however many begin and end.
func TestTheHeadForgetsRunsSoonerWhenThereAreMany(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9)})
	if err != nil {
		t.Fatal(err)
	}
	folder.bounds.runs = 5
	feeder, _ := follow(t, s, Positions{}, folder)
	early, earlyGot := follow(t, s, Positions{}, nil)
	if _, err := early.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	w := newWriter(t, s, 1)
	var first, last Position
	for n := range uint64(30) {
		_, _ = w.Add(entry("a", n))
		if last, _, err = w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			first = last
			if early.Forgotten(first.Run) {
				t.Error("a run is forgotten that has just begun")
			}
		}
		if err := w.Close(ctx); err != nil {
			t.Fatal(err)
		}
		foldAll(t, feeder, folder)
	}
	head := folder.Head()
	if len(head.Runs) > 6 || head.Forgotten == 0 || head.Run(last.Run) == nil {
		t.Errorf("%d runs, forgotten %d, the last one %v", len(head.Runs), head.Forgotten, head.Run(last.Run))
	}
	if _, err := early.Poll(ctx); err != nil || len(earlyGot) != 30 {
		t.Errorf("%d batches, %v", len(earlyGot), err)
	}
	// What the head does not name any more was read all the same.
	if early.Has(first) || !early.Forgotten(first.Run) || !early.Has(last) || early.Forgotten(last.Run) {
		t.Errorf("the first: %v %v, the last: %v %v", early.Has(first), early.Forgotten(first.Run), early.Has(last), early.Forgotten(last.Run))
	}
	open := newWriter(t, s, 2)
	_, _ = open.Add(entry("b", 0))
	at, _, err := open.Flush(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := early.Poll(ctx); err != nil || !early.Has(at) || early.Forgotten(at.Run) {
		t.Errorf("an open run: %v %v, %v", early.Has(at), early.Forgotten(at.Run), err)
	}
}

// A spooler that closed its run, and does not know whether it did, has an open run again once Begin has returned.
func TestBeginOpensARunBehindAnUnknownEnd(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, &unanswered{Store: s, key: 1, applied: true}, 1)
	w.open.Role = RoleSpooler
	first, err := w.Begin(ctx)
	if err != nil || first.Segment != 0 {
		t.Fatal(first, err)
	}
	if again, err := w.Begin(ctx); err != nil || again != first {
		t.Fatal(again, err)
	}
	if err := w.Close(ctx); !errors.Is(err, objstore.ErrUnknown) {
		t.Fatal(err)
	}
	at, err := w.Begin(ctx)
	if err != nil || at.Run == first.Run || at.Segment != 0 || !w.Open() {
		t.Errorf("%v, open %v, %v", at, w.Open(), err)
	}
	f, _ := follow(t, s, Positions{}, nil)
	if _, err := f.Poll(ctx); err != nil || len(f.Runs()) != 1 || f.Runs()[0].Run != at.Run {
		t.Errorf("%+v, %v", f.Runs(), err)
	}
}

// hiding is a store that lacks some keys, and counts requests of segments.
type hiding struct {
	*mem.Store
	hidden map[string]bool
	gets   int
}

func (s *hiding) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if strings.HasPrefix(key, layout.JournalRunPrefix) {
		s.gets++
	}
	if s.hidden[key] {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrNotFound}
	}
	return s.Store.Get(ctx, key, o)
}

// manySegments writes a run of n segments after the first.
func manySegments(t *testing.T, s *hiding, n uint64) Position {
	t.Helper()
	w := newWriter(t, s, 1)
	var at Position
	for i := range n + 1 {
		var err error
		_, _ = w.Add(entry("a", i))
		if at, _, err = w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

// TestReadingAhead: a run with many segments is read several at a time, for few requests more than it has segments. One that
// is there counts only after all before it are: the one between may just have been created.
func TestReadingAhead(t *testing.T) {
	const n = 21
	s := &hiding{Store: mem.New(nil), hidden: map[string]bool{}}
	at := manySegments(t, s, n)
	gap := Position{at.Run, 6}
	s.hidden[gap.Key()] = true
	f, got := follow(t, s, Positions{}, nil)
	widest := 0
	f.cfg.Fan = func(ctx context.Context, n int, do func(context.Context, int) error) error {
		widest = max(widest, n)
		return OneByOne(ctx, n, do)
	}
	if _, err := f.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) != 6 || f.Has(gap) {
		t.Errorf("%d segments were applied, want those before the gap", len(got))
	}
	s.hidden, s.gets = nil, 0
	if _, err := f.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) != n+1 || widest != maxAhead {
		t.Errorf("%d segments were applied, at most %d side by side", len(got), widest)
	}
	if most := n + 1 - 6 + maxAhead; s.gets > most {
		t.Errorf("%d requests for segments, want at most %d", s.gets, most)
	}
	for id, times := range got {
		if times != 1 {
			t.Errorf("%s was applied %d times", id, times)
		}
	}
}

// TestAHintReadsThroughItsSegment: what a hint names is there, so nothing behind it is asked for.
func TestAHintReadsThroughItsSegment(t *testing.T) {
	s := &hiding{Store: mem.New(nil)}
	at := manySegments(t, s, 0)
	f, got := follow(t, s, Positions{}, nil)
	if _, err := f.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := newWriter(t, s, 2)
	_, _ = w.Add(entry("b", 0))
	unknown, _, err := w.Flush(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if known, err := f.Read(t.Context(), unknown); err != nil || known {
		t.Errorf("a run that no poll has found: %v, %v", known, err)
	}
	first := s.gets
	for i := range uint64(3) {
		seg := Segment{Position: Position{at.Run, i + 1}, Entries: []Entry{entry("a", i+1)}}
		b, err := seg.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(t.Context(), seg.Key(), b, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time it is read already
		if known, err := f.Read(t.Context(), Position{at.Run, 2}); err != nil || !known {
			t.Fatal(known, err)
		}
	}
	if len(got) != 3 || s.gets != first+2 {
		t.Errorf("%d entries, %d requests", len(got), s.gets-first)
	}
	// A hint at something that is not there is no reason to ask for ever.
	if _, err := f.Read(t.Context(), Position{at.Run, 1 << 60}); err != nil || len(got) != 4 || s.gets > first+2+2*maxAhead {
		t.Errorf("%v, %d entries, %d requests", err, len(got), s.gets-first)
	}
}

// What a follower holds is bounded by the runs that are open, or that the head names, and not by history: neither by
// the segments of a run, nor by the runs that have ended.
func TestAFollowerHoldsRunsNotHistory(t *testing.T) {
	size := func(lives int) [3]int {
		ctx, s := t.Context(), mem.New(nil)
		folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9)})
		if err != nil {
			t.Fatal(err)
		}
		folder.bounds.runs = 5
		feeder, _ := follow(t, s, Positions{}, folder)
		f, got := follow(t, s, Positions{}, nil)
		long, w := newWriter(t, s, 1), newWriter(t, s, 2)
		for n := range uint64(lives) {
			for i, x := range []*Writer{long, w} {
				_, _ = x.Add(entry(fmt.Sprint("writer ", i), n))
				if _, _, err := x.Flush(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(ctx); err != nil {
				t.Fatal(err)
			}
			foldAll(t, feeder, folder)
			if _, err := f.Poll(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) != 2*lives {
			t.Fatalf("%d of %d batches", len(got), 2*lives)
		}
		return [3]int{len(f.runs), len(f.Positions().Runs), len(f.head.Runs)}
	}
	few := size(20)
	for _, n := range []int{80, 320} {
		if many := size(n); many != few || few[0] > 12 {
			t.Errorf("%d runs, %d of positions and %d of the head after %d lives of a writer; %v after 20", many[0], many[1], many[2], n, few)
		}
	}
}
