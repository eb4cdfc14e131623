package journal

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
)

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
