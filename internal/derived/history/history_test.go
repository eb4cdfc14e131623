package history

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const authority = "authority"

type seeded struct{ *rand.ChaCha8 }

// world is a journal with a folder that deletes at once what it has folded.
type world struct {
	t        *testing.T
	store    *mem.Store
	rand     *rand.Rand
	source   seeded
	writers  []*journal.Writer
	folder   *journal.Folder
	follower *journal.Follower
	now      int64
	n        uint64
	answered []journal.Entry
}

func newWorld(t *testing.T, seed byte) *world {
	w := &world{t: t, store: mem.New(nil), source: seeded{rand.NewChaCha8([32]byte{seed})}}
	w.rand = rand.New(w.source)
	var err error
	w.folder, err = journal.NewFolder(journal.FolderConfig{Store: w.store, Rand: w.source})
	w.must(err)
	w.follower, err = journal.NewFollower(journal.FollowerConfig{
		Store: w.store, Authority: authority,
		Segment: func(_ context.Context, s *journal.Segment) error { return w.folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil },
	})
	w.must(err)
	for range 3 {
		w.writers = append(w.writers, w.writer())
	}
	w.must(journaltest.Complete(t.Context(), w.store, authority))
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) writer() *journal.Writer {
	wr, err := journal.NewWriter(journal.WriterConfig{
		Store: w.store, Rand: w.source, Clock: func() int64 { return 7 },
		Opening: journal.Opening{Writer: "collector", Role: journal.RoleCollector, Authority: authority},
	})
	w.must(err)
	return wr
}

// at is the time of acceptance of the nth batch, which has samples of the minute before.
func at(n uint64) int64 { return int64(n) * 60e9 }

func entry(n uint64) journal.Entry {
	return journal.Entry{
		ID:      identity.Batch{Agent: fmt.Sprint("agent-", n%5), Boot: "boot", SeqStart: n * 10, SeqEnd: n*10 + 9},
		Outcome: journal.Accepted, SHA256: identity.Sum(fmt.Append(nil, n)), Bytes: 100,
		At: at(n), MinTime: at(n) - 60e9, MaxTime: at(n) - 1,
	}
}

// answer has a writer journal the next batch, or an earlier one again as a duplicate.
func (w *world) answer() {
	w.n++
	e := entry(w.n)
	switch i := w.rand.IntN(8); {
	case i == 0 && w.n > 1:
		w.n--
		e = entry(1 + w.rand.Uint64N(w.n))
		e.Outcome = journal.Duplicate
	case i == 1:
		e.Outcome = journal.Conflict
	}
	wr := w.rand.IntN(len(w.writers))
	_, err := w.writers[wr].Add(e)
	w.must(err)
	_, _, err = w.writers[wr].Flush(w.t.Context())
	w.must(err)
	w.answered = append(w.answered, e)
	if w.rand.IntN(6) == 0 { // one life of a collector ends
		w.must(w.writers[wr].Close(w.t.Context()))
		w.writers[wr] = w.writer()
	}
}

// fold folds what is there, and deletes what was folded before.
func (w *world) fold() {
	_, err := w.follower.Poll(w.t.Context())
	w.must(err)
	for range 3 {
		w.now++
		_, err := w.folder.Fold(w.t.Context(), w.now)
		w.must(err)
	}
}

// step is something that goes on beside a reader.
func (w *world) step() {
	for range 1 + w.rand.IntN(3) {
		if w.answer(); w.rand.IntN(2) == 0 {
			w.fold()
		}
	}
}

func (w *world) reader() Reader { return Reader{Store: w.store, Authority: authority} }

// key names what an entry is about.
func key(e *journal.Entry) string {
	if e.Outcome.Conflict() {
		return layout.Quarantine(e.ID, e.SHA256)
	}
	return layout.Accepted(e.ID)
}

// selections by name, and by hand which entries they ask for.
var selections = map[string]struct {
	Selection
	wants func(*journal.Entry) bool
}{
	"everything": {Selection{Conflicts: true}, func(*journal.Entry) bool { return true }},
	"accepted":   {Selection{}, func(e *journal.Entry) bool { return e.Outcome != journal.Conflict }},
	"accepted in a range": {Selection{Accepted: Range{at(20), at(40)}}, func(e *journal.Entry) bool {
		return e.Outcome != journal.Conflict && e.ID.SeqStart >= 200 && e.ID.SeqStart < 400
	}},
	"samples in a range": {Selection{Samples: Range{at(20), at(40)}}, func(e *journal.Entry) bool {
		return e.Outcome != journal.Conflict && e.ID.SeqStart > 200 && e.ID.SeqStart <= 400
	}},
	"of an agent": {Selection{Agents: func(a string) bool { return a == "agent-2" }}, func(e *journal.Entry) bool {
		return e.Outcome != journal.Conflict && e.ID.SeqStart/10%5 == 2
	}},
}

// TestNothingAnsweredIsMissed: while collectors come and go and folders fold, merge and delete between any two pages.
func TestNothingAnsweredIsMissed(t *testing.T) {
	for seed := range byte(12) {
		for name, s := range selections {
			w := newWorld(t, seed)
			for range 40 {
				w.step()
			}
			before := len(w.answered)
			given := map[string]int{}
			read, err := w.reader().Read(t.Context(), s.Selection, 0, func(_ context.Context, p Page) error {
				for i := range p.Entries {
					if e := &p.Entries[i]; !s.wants(e) {
						t.Fatalf("%s: %s %s was not asked for", name, e.Outcome, e.ID)
					}
					given[key(&p.Entries[i])]++
				}
				if !slices.IsSortedFunc(p.Entries, func(a, b journal.Entry) int { return a.ID.Compare(b.ID) }) {
					t.Errorf("%s: a page is out of order", name)
				}
				if w.rand.IntN(2) == 0 {
					w.step()
				}
				return nil
			})
			w.must(err)
			for i := range w.answered[:before] {
				if e := &w.answered[i]; s.wants(e) && given[key(e)] != 1 {
					t.Errorf("seed %d, %s: %s %s was given %d times", seed, name, e.Outcome, e.ID, given[key(e)])
				}
			}
			for k, n := range given {
				if n != 1 {
					t.Errorf("seed %d, %s: %s was given %d times", seed, name, k, n)
				}
			}
			if read.Through.IsZero() || read.Positions.Head == 0 {
				t.Errorf("%+v", read)
			}
		}
	}
}

// TestAReadingGoesOnWhereOneWas: after any page, and after folds and merges in between.
func TestAReadingGoesOnWhereOneWas(t *testing.T) {
	errStop := errors.New("stop")
	for seed := range byte(12) {
		w := newWorld(t, seed)
		for range 40 {
			w.step()
		}
		before := len(w.answered)
		given, after := map[string]bool{}, uint64(0)
		for {
			pages := 0
			_, err := w.reader().Read(t.Context(), Selection{Conflicts: true}, after, func(_ context.Context, p Page) error {
				if pages++; pages > 2 && p.Through > 0 {
					return errStop // killed before the page is done
				}
				for i := range p.Entries {
					given[key(&p.Entries[i])] = true
				}
				after = max(after, p.Through)
				return nil
			})
			if err == nil {
				break
			}
			if !errors.Is(err, errStop) {
				t.Fatal(err)
			}
			for range 3 {
				w.step()
			}
		}
		for i := range w.answered[:before] {
			if e := &w.answered[i]; !given[key(e)] {
				t.Errorf("seed %d: %s %s was not given", seed, e.Outcome, e.ID)
			}
		}
	}
}

// gets counts the keys that are read.
type gets struct {
	*mem.Store
	keys map[string]int
}

func (g gets) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	g.keys[key]++
	return g.Store.Get(ctx, key, o)
}

// TestOnlyWhatASpanOverlapsIsRead: of files, and of lists of files.
func TestOnlyWhatASpanOverlapsIsRead(t *testing.T) {
	ctx, w := t.Context(), newWorld(t, 1)
	for range 7 { // fewer than are merged
		for range 10 {
			w.n++
			_, err := w.writers[0].Add(entry(w.n))
			w.must(err)
		}
		_, _, err := w.writers[0].Flush(ctx)
		w.must(err)
		w.fold()
	}
	// The older five files move into a list, as they do where there are very many.
	head, etag, err := journal.ReadHead(ctx, w.store)
	w.must(err)
	if len(head.Files) != 7 {
		t.Fatalf("%d files", len(head.Files))
	}
	body, err := journal.MarshalList(head.Files[:5])
	w.must(err)
	l := journal.FileList{Span: head.Files[0].Span}
	l.Key, l.Last, l.MaxAt, l.MaxTime = layout.JournalList(head.Number, journal.RunID{9}), head.Files[4].Last, head.Files[4].MaxAt, head.Files[4].MaxTime
	_, err = w.store.Create(ctx, l.Key, body, objstore.PutOptions{})
	w.must(err)
	head.Number, head.Lists, head.Files = head.Number+1, []journal.FileList{l}, head.Files[5:]
	b, err := head.Marshal()
	w.must(err)
	_, err = w.store.Replace(ctx, layout.JournalHeadKey, b, etag, objstore.PutOptions{})
	w.must(err)

	for _, c := range []struct {
		from, to    uint64
		files, list int
	}{{1, 71, 7, 1}, {1, 11, 1, 1}, {15, 30, 2, 1}, {51, 61, 1, 0}, {60, 62, 2, 0}, {71, 90, 0, 0}} {
		g := gets{w.store, map[string]int{}}
		batches := 0
		_, err := Reader{Store: g, Authority: authority}.Read(ctx, Selection{Accepted: Range{at(c.from), at(c.to)}}, 0, func(_ context.Context, p Page) error {
			batches += len(p.Entries)
			return nil
		})
		w.must(err)
		files := 0
		for k := range g.keys {
			if strings.HasPrefix(k, layout.JournalFoldedPrefix) && k != l.Key {
				files++
			}
		}
		if want := int(min(c.to, 71) - min(c.from, 71)); files != c.files || g.keys[l.Key] != c.list || batches != want {
			t.Errorf("%d to %d: %d files and %d lists were read, %d batches; want %d, %d, %d", c.from, c.to, files, g.keys[l.Key], batches, c.files, c.list, want)
		}
	}
}

func TestAnIncompleteJournalIsNoHistory(t *testing.T) {
	w := newWorld(t, 1)
	w.must(w.store.Delete(t.Context(), layout.JournalBeginKey))
	w.answer()
	page := func(context.Context, Page) error { t.Error("a page"); return nil }
	if _, err := w.reader().Read(t.Context(), Selection{}, 0, page); !errors.Is(err, ErrIncomplete) {
		t.Errorf("not audited: %v", err)
	}
	w.must(journaltest.Complete(t.Context(), w.store, authority))
	if _, err := w.reader().Read(t.Context(), Selection{}, 5, page); !errors.Is(err, journal.ErrHeadWentBack) {
		t.Errorf("from beyond the head: %v", err)
	}
}

// A file that is lost stops a reading, and what was dropped is no history: before the reading, and beside it.
func TestALostFileIsNoHistory(t *testing.T) {
	w := newWorld(t, 1)
	for range 2 {
		for range 3 {
			w.answer()
		}
		w.fold()
	}
	pages := 0
	page := func(context.Context, Page) error { pages++; return nil }
	head, _, err := journal.ReadHead(t.Context(), w.store)
	w.must(err)
	key := head.Files[0].Key
	drop := func() {
		w.must(w.store.Delete(t.Context(), key))
		_, err := journal.Drop(t.Context(), w.store, w.source, []string{key})
		w.must(err)
	}
	if _, err := w.reader().Read(t.Context(), Selection{}, 0, func(context.Context, Page) error {
		if pages++; pages == 1 {
			drop() // what this reading has may be what is lost
		}
		return nil
	}); !errors.Is(err, ErrIncomplete) {
		t.Errorf("dropped meanwhile: %v", err)
	}
	pages = 0
	if _, err := w.reader().Read(t.Context(), Selection{}, 0, page); !errors.Is(err, ErrIncomplete) || pages > 0 {
		t.Errorf("dropped before: %v, %d pages", err, pages)
	}
	head, _, err = journal.ReadHead(t.Context(), w.store)
	w.must(err)
	w.must(journal.Begin{AuthorityID: authority, By: journal.ByAudit, Head: head.Number}.Write(t.Context(), w.store))
	if _, err := w.reader().Read(t.Context(), Selection{}, 0, page); err != nil {
		t.Errorf("audited: %v", err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	o := newOnce(10)
	for n := range uint64(1000) {
		e := entry(n)
		if !o.first(&e) {
			t.Errorf("batch %d is taken for one that was given", n)
		}
		if again := entry(n - min(n, 9)); o.first(&again) {
			t.Errorf("batch %d is given again", n)
		}
		if len(o.new)+len(o.last) > 20 {
			t.Fatalf("%d are remembered", len(o.new)+len(o.last))
		}
	}
}

// TestFolded: what is folded is given from a move on, whatever is merged meanwhile, and nothing is asked of the rest of the journal.
func TestFolded(t *testing.T) {
	w := newWorld(t, 3)
	var want []uint64
	for range 6 {
		w.n++
		w.must(journaltest.Append(t.Context(), w.store, authority, entry(w.n)))
		_, err := journaltest.Fold(t.Context(), w.store, authority)
		w.must(err)
		want = append(want, w.n)
	}
	w.n++
	w.must(journaltest.Append(t.Context(), w.store, authority, entry(w.n))) // not folded
	read := func(after uint64) (got, through []uint64, last uint64) {
		t.Helper()
		last, err := Folded(t.Context(), w.store, Selection{}, after, func(_ context.Context, p Page) error {
			for _, e := range p.Entries {
				got = append(got, e.ID.SeqStart/10)
			}
			through = append(through, p.Through)
			return nil
		})
		w.must(err)
		return got, through, last
	}
	got, through, last := read(0)
	if !slices.Equal(got, want) || len(through) < 2 || through[len(through)-1] != last {
		t.Fatalf("%d through %d of %d, want %d", got, through, last, want)
	}
	if got, _, again := read(last); len(got) > 0 || again != last {
		t.Errorf("%d behind the end", got)
	}
	if got, _, _ := read(through[len(through)-2]); len(got) == 0 || !slices.Equal(got, want[len(want)-len(got):]) {
		t.Errorf("%d behind the last file but one", got)
	}
	if _, err := Folded(t.Context(), w.store, Selection{}, last+1, nil); !errors.Is(err, journal.ErrHeadWentBack) {
		t.Error(err)
	}
	end := errors.New("end")
	if _, err := Folded(t.Context(), w.store, Selection{}, 0, func(context.Context, Page) error { return end }); !errors.Is(err, end) {
		t.Error(err)
	}
}
