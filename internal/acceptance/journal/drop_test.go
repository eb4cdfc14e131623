package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
)

// severalFiles is a store whose head names lists and files, each of one entry.
func severalFiles(t *testing.T) (*mem.Store, Head) {
	t.Helper()
	ctx, s := t.Context(), mem.New(nil)
	w := newWriter(t, s, 1)
	folder, err := NewFolder(FolderConfig{Store: s, Rand: source(9)})
	if err != nil {
		t.Fatal(err)
	}
	folder.bounds.filesListed = 3
	feeder, _ := follow(t, s, Positions{}, folder)
	for i := range uint64(7) {
		_, _ = w.Add(entry("a", i))
		if _, _, err := w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		foldAll(t, feeder, folder)
	}
	head := folder.Head()
	if len(head.Lists) == 0 || len(head.Files) < 3 {
		t.Fatalf("%d lists, %d files", len(head.Lists), len(head.Files))
	}
	return s, head
}

func lose(t *testing.T, s *mem.Store, key string) {
	t.Helper()
	if err := s.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
}

// A file that is lost stops a follower that has not read it, and the error says what to do. Once it is dropped the
// follower has the rest, and its poll says what is lost; a follower that had read the file goes on all the time.
func TestADroppedFileLetsFollowersGoOn(t *testing.T) {
	ctx := t.Context()
	for name, spoil := range map[string]func(*mem.Store, string){
		"gone": func(s *mem.Store, key string) { lose(t, s, key) },
		"damaged": func(s *mem.Store, key string) {
			if _, err := s.Put(ctx, key, []byte("rotten"), objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, head := severalFiles(t)
			files, err := head.FilesAfter(ctx, s, 0)
			if err != nil {
				t.Fatal(err)
			}
			ahead, aheadGot := follow(t, s, Positions{}, nil)
			if _, err := ahead.Poll(ctx); err != nil {
				t.Fatal(err)
			}
			// One of a list, one of the head, and a list as a whole.
			for _, key := range []string{files[1].Key, head.Files[0].Key, head.Lists[len(head.Lists)-1].Key} {
				now, _, err := ReadHead(ctx, s)
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasSuffix(key, ".json") {
					key = now.Lists[len(now.Lists)-1].Key // it has another key since its file was dropped
				}
				spoil(s, key)
				late, _ := follow(t, s, Positions{}, nil)
				if _, err := late.Poll(ctx); err == nil || !strings.Contains(err.Error(), "lmctl journal drop URL "+key) {
					t.Fatalf("a poll without %s: %v", key, err)
				}
				if _, err := ahead.Poll(ctx); err != nil {
					t.Errorf("a follower that is ahead: %v", err)
				}
				if found, err := FindLost(ctx, s, []string{key}); err != nil || len(found) != 1 || found[0].Key != key {
					t.Errorf("%+v, %v", found, err)
				}
				d, err := Drop(ctx, s, source(7), []string{key})
				if err != nil || d.Head != now.Number+1 || len(d.Spans) != 1 || d.Spans[0].Key != key {
					t.Fatalf("%+v, %v", d, err)
				}
				if p, err := late.Poll(ctx); err != nil || p.Lost != d.Head {
					t.Errorf("%+v, %v", p, err)
				}
				if p, err := ahead.Poll(ctx); err != nil || p.Lost != d.Head || len(aheadGot) != 7 {
					t.Errorf("a follower that is ahead: %+v, %v", p, err)
				}
				if _, err := Drop(ctx, s, source(7), []string{key}); !errors.Is(err, ErrNotNamed) {
					t.Errorf("again: %v", err)
				}
			}
			fresh, got := follow(t, s, Positions{}, nil)
			if _, err := fresh.Poll(ctx); err != nil || len(got) != 7-1-1-2 {
				t.Errorf("%d batches, %v", len(got), err)
			}
			if complete, err := IsComplete(ctx, s); err != nil || complete {
				t.Errorf("complete: %v, %v", complete, err)
			}
		})
	}
}

// failing fails to read some keys.
type failing struct {
	*mem.Store
	key string
	err error
}

func (f failing) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if key == f.key {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: f.err}
	}
	return f.Store.Get(ctx, key, o)
}

func TestDropRefuses(t *testing.T) {
	ctx := t.Context()
	s, head := severalFiles(t)
	sound, lost := head.Files[1].Key, head.Files[0].Key
	whole, _, err := s.Get(ctx, sound, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	newer := slices.Clone(whole)
	newer[5] = 9 // the version of the format
	lose(t, s, lost)
	before, _, err := s.Get(ctx, layout.JournalHeadKey, objstore.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		store Store
		keys  []string
		want  error
	}{
		"a file that can be read":                {s, []string{sound}, ErrFileReadable},
		"one that can be read beside a lost one": {s, []string{lost, sound}, ErrFileReadable},
		"a list that can be read":                {s, []string{head.Lists[0].Key}, ErrFileReadable},
		"a file that nothing names":              {s, []string{lost + "x"}, ErrNotNamed},
		"a segment":                              {s, []string{layout.JournalOpenPrefix + "x"}, ErrNotNamed},
		"a store that does not answer":           {failing{s, lost, objstore.ErrUnavailable}, []string{lost}, objstore.ErrUnavailable},
		"a store that denies":                    {failing{s, lost, objstore.ErrDenied}, []string{lost}, objstore.ErrDenied},
		"a head that can't be read":              {failing{s, layout.JournalHeadKey, objstore.ErrUnavailable}, []string{lost}, objstore.ErrUnavailable},
	} {
		if _, err := Drop(ctx, c.store, source(7), c.keys); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := FindLost(ctx, c.store, c.keys); !errors.Is(err, c.want) {
			t.Errorf("%s: found: %v", name, err)
		}
	}
	if _, err := s.Put(ctx, sound, newer, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Drop(ctx, s, source(7), []string{sound}); err == nil || errors.Is(err, ErrFileReadable) {
		t.Errorf("a file of a newer release: %v", err)
	}
	if after, _, err := s.Get(ctx, layout.JournalHeadKey, objstore.GetOptions{}); err != nil || string(after) != string(before) {
		t.Errorf("the head has moved: %v", err)
	}
}

// Two operators, and a folder beside them: each move is made on what the other one left.
func TestDropsRace(t *testing.T) {
	ctx := t.Context()
	s, head := severalFiles(t)
	first, second := head.Files[0].Key, head.Files[1].Key
	lose(t, s, first)
	lose(t, s, second)
	h := &hooked{Store: s, before: map[string]func(){layout.JournalHeadKey: func() {
		if _, err := Drop(ctx, s, source(8), []string{second}); err != nil {
			t.Error(err)
		}
	}}}
	if _, err := Drop(ctx, h, source(7), []string{first}); !errors.Is(err, objstore.ErrPreconditionFailed) {
		t.Fatalf("a head that moved meanwhile: %v", err)
	}
	d, err := Drop(ctx, h, source(7), []string{first})
	if err != nil || d.Head != head.Number+2 {
		t.Fatalf("%+v, %v", d, err)
	}
	f, got := follow(t, s, Positions{}, nil)
	if p, err := f.Poll(ctx); err != nil || p.Lost != d.Head || len(got) != 5 {
		t.Errorf("%+v, %d batches, %v", p, len(got), err)
	}
}

// A drop whose answer is lost has been made, or not, and the call is repeated.
func TestADropOfUnknownOutcome(t *testing.T) {
	ctx := t.Context()
	s, head := severalFiles(t)
	lose(t, s, head.Files[0].Key)
	u := &unheard{Store: s}
	d, err := Drop(ctx, u, source(7), []string{head.Files[0].Key})
	now, _, rerr := ReadHead(ctx, s)
	if rerr != nil {
		t.Fatal(rerr)
	}
	if err == nil && now.Lost != d.Head {
		t.Errorf("%+v is said to be made, the head is %+v", d, now)
	}
	if err != nil {
		_, err = Drop(ctx, s, source(7), []string{head.Files[0].Key})
		if err != nil && !errors.Is(err, ErrNotNamed) {
			t.Error(err)
		}
	}
}

func TestALaterBeginStays(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	is := func(want uint64, by string) {
		t.Helper()
		b, err := ReadBegin(ctx, s)
		if err != nil || b.Head != want || b.By != by {
			t.Errorf("%+v, %v", b, err)
		}
	}
	is(0, "")
	for _, b := range []Begin{{AuthorityID: "a", By: ByAuthority}, {AuthorityID: "a", By: ByAudit, Audit: "x", Head: 5}, {AuthorityID: "a", By: ByAudit, Audit: "y", Head: 3}, {AuthorityID: "a", By: ByAuthority}} {
		if err := b.Write(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	is(5, ByAudit)
	for lost, want := range map[uint64]bool{0: true, 5: true, 6: false} {
		b, _ := ReadBegin(ctx, s)
		if b.Covers(lost) != want {
			t.Errorf("lost %d", lost)
		}
	}
	if b := (Begin{}); b.Covers(0) {
		t.Error("no record covers something")
	}
	// Two audits that end at once: the later one stays, whoever is first.
	h := &hooked{Store: s, before: map[string]func(){layout.JournalBeginKey: func() {
		if err := (Begin{AuthorityID: "a", By: ByAudit, Audit: "z", Head: 9}).Write(ctx, s); err != nil {
			t.Error(err)
		}
	}}}
	if err := (Begin{AuthorityID: "a", By: ByAudit, Audit: "v", Head: 7}).Write(ctx, h); err != nil {
		t.Error(err)
	}
	is(9, ByAudit)
	if _, err := ParseBegin(BeginKind.Marshal(Begin{AuthorityID: "a", By: ByAuthority, Head: 1})); err == nil {
		t.Error("an authority that began behind a head is taken")
	}
	if b := fmt.Sprint(string(BeginKind.Marshal(Begin{AuthorityID: "a", By: ByAuthority}))); strings.Contains(b, "head") {
		t.Errorf("%s", b)
	}
}

// A journal that began again, or went back, has lower numbers than begin.json: a file that is dropped is none that it covers.
func TestADropIsBehindTheBegin(t *testing.T) {
	ctx := t.Context()
	s, head := severalFiles(t)
	lose(t, s, head.Files[0].Key)
	before := Begin{AuthorityID: "a", By: ByAudit, Audit: "x", Head: head.Number + 40}
	if err := before.Write(ctx, s); err != nil {
		t.Fatal(err)
	}
	d, err := Drop(ctx, s, source(7), []string{head.Files[0].Key})
	if err != nil || d.Head != before.Head+1 {
		t.Fatalf("%+v, %v", d, err)
	}
	if complete, err := IsComplete(ctx, s); err != nil || complete {
		t.Errorf("complete: %v, %v", complete, err)
	}
	f, got := follow(t, s, Positions{}, nil)
	if p, err := f.Poll(ctx); err != nil || p.Lost != d.Head || len(got) != 6 {
		t.Errorf("%+v, %d batches, %v", p, len(got), err)
	}
}
