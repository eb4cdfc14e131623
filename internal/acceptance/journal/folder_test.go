package journal

import (
	"context"
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

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

// Two folders race, and the one whose move stands does not learn it. The segments go all the same, with nothing
// further to fold.
func TestSegmentsOfAMoveOfUnknownOutcomeAreDeleted(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, s, 1)
	var folders []*Folder
	var followers []*Follower
	lossy := &unheard{Store: s}
	for i, store := range []Store{lossy, s} {
		folder, err := NewFolder(FolderConfig{Store: store, Rand: source(byte(9 + i)), Retention: 10})
		if err != nil {
			t.Fatal(err)
		}
		from, err := folder.Load(ctx)
		if err != nil {
			t.Fatal(err)
		}
		f, _ := follow(t, s, from, folder)
		folders, followers = append(folders, folder), append(followers, f)
	}
	both := func(now int64) (errs []error) {
		for i := range folders {
			if _, err := followers[i].Poll(ctx); err != nil {
				t.Fatal(err)
			}
			_, err := folders[i].Fold(ctx, now)
			errs = append(errs, err)
		}
		return errs
	}
	both(0)
	_, _ = w.Add(entry("a", 1))
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	lossy.on = true
	if errs := both(20); errs[0] == nil {
		t.Fatal("the first folder has heard of its move")
	}
	lossy.on = false
	for now := int64(40); now < 100; now += 20 {
		both(now)
	}
	for _, prefix := range []string{layout.JournalOpenPrefix, layout.JournalPrefix + "run="} {
		page, err := s.List(ctx, listAll(prefix))
		if err != nil || len(page.Objects) > 0 {
			t.Errorf("under %s are %d objects, %v", prefix, len(page.Objects), err)
		}
	}
}

// unheard is a store whose answers about the head are lost.
type unheard struct {
	Store
	on bool
}

func (s *unheard) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	info, err := s.Store.Create(ctx, key, b, o)
	if s.on && key == layout.JournalHeadKey {
		return objstore.Info{}, objstore.ErrUnknown
	}
	return info, err
}

func (s *unheard) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	info, err := s.Store.Replace(ctx, key, b, etag, o)
	if s.on && key == layout.JournalHeadKey {
		return objstore.Info{}, objstore.ErrUnknown
	}
	return info, err
}

func (s *unheard) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if s.on && key == layout.JournalHeadKey {
		return nil, objstore.Info{}, objstore.ErrUnavailable
	}
	return s.Store.Get(ctx, key, o)
}
