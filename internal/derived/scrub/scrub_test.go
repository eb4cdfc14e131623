package scrub

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func entry(n int) journal.Entry {
	id := identity.Batch{Agent: fmt.Sprintf("a%04d", n), Boot: "boot", SeqEnd: 9}
	return journal.Entry{ID: id, SHA256: identity.Sum([]byte(id.String())), Bytes: 9, At: 1e18, MinTime: 1, MaxTime: 2, Outcome: journal.Accepted}
}

// bucket is a journal that is folded.
type bucket struct {
	*mem.Store
	t       testing.TB
	folder  *journal.Folder
	entries int
	now     int64
}

func newBucket(t testing.TB) *bucket {
	b := &bucket{Store: mem.New(time.Now), t: t}
	var err error
	b.folder, err = journal.NewFolder(journal.FolderConfig{Store: b.Store, Rand: rand.NewChaCha8([32]byte{1}), Retention: 0})
	must(t, err)
	return b
}

// add folds n entries by a move of their own.
func (b *bucket) add(n int) {
	var es []journal.Entry
	for range n {
		es = append(es, entry(b.entries))
		b.entries++
	}
	ctx := b.t.Context()
	must(b.t, journaltest.Append(ctx, b.Store, "authority", es...))
	from, err := b.folder.Load(ctx)
	must(b.t, err)
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: b.Store, Authority: "authority", From: from,
		Segment: func(_ context.Context, s *journal.Segment) error { return b.folder.Add(s) },
		Folded:  func(context.Context, []journal.Entry) error { return nil },
	})
	must(b.t, err)
	_, err = f.Poll(ctx)
	must(b.t, err)
	b.now++
	_, err = b.folder.Fold(ctx, b.now)
	must(b.t, err)
}

func (b *bucket) head() *journal.Head {
	h, _, err := journal.ReadHead(b.t.Context(), b.Store)
	must(b.t, err)
	return &h
}

// read is all entries of a job that were not checked.
func (b *bucket) read(j *Job) (out []identity.Batch) {
	at := uint64(0)
	for _, f := range j.Files {
		es, err := journal.ReadFile(b.t.Context(), b.Store, f)
		must(b.t, err)
		for i := range es {
			if at++; at > j.Done {
				out = append(out, es[i].ID)
			}
		}
	}
	return out
}

func cursor(s Store, by string) *Cursor {
	return &Cursor{Store: s, By: by, Claim: "claim of " + by, Lease: time.Minute, Period: time.Hour}
}

// next takes a chunk, which must be there.
func next(t testing.TB, c *Cursor, now time.Time, b *bucket) Job {
	t.Helper()
	j, r, ok, err := c.Next(t.Context(), now, b.head())
	if err != nil || !ok {
		t.Fatalf("no chunk: %+v, %v", r, err)
	}
	return j
}

func none(t testing.TB, c *Cursor, now time.Time, b *bucket) Record {
	t.Helper()
	j, r, ok, err := c.Next(t.Context(), now, b.head())
	if err != nil || ok {
		t.Fatalf("%+v, %v", j, err)
	}
	return r
}

var begin = time.Unix(1_700_000_000, 0)

// A restart goes on at the entry where the last process was, once its lease is over or it has given the chunk up.
func TestRestartGoesOn(t *testing.T) {
	ctx := t.Context()
	for _, orderly := range []bool{false, true} {
		b := newBucket(t)
		b.add(10)
		first, second := cursor(b.Store, "r1"), cursor(b.Store, "r2")
		j := next(t, first, begin, b)
		j.Done = 4
		must(t, first.Move(ctx, begin.Add(time.Second), &j, orderly))
		at := begin.Add(30 * time.Second)
		if !orderly {
			none(t, second, at, b)
			at = begin.Add(2 * time.Minute)
		}
		got := next(t, second, at, b)
		if left := b.read(&got); len(left) != 6 {
			t.Errorf("%d entries are left of 10, of which 4 were checked", len(left))
		}
		// The first one wakes up.
		if err := first.Move(ctx, at, &j, false); !errors.Is(err, ErrTakenOver) {
			t.Errorf("%v", err)
		}
		if err := first.Finish(ctx, &j); !errors.Is(err, ErrTakenOver) {
			t.Errorf("%v", err)
		}
		got.Done = 10
		must(t, second.Finish(ctx, &got))
		if r := none(t, second, at, b); r.Checked != 10 || len(r.Chunks) != 0 {
			t.Errorf("%+v", r)
		}
	}
}

// Two reconcilers check different frames, and what is folded meanwhile belongs to the same pass. The next pass begins when the
// period is over.
func TestReconcilersShareAPass(t *testing.T) {
	ctx := t.Context()
	b := newBucket(t)
	b.add(chunkEntries / 20)
	for range 3 {
		b.add(10)
	}
	a, c := cursor(b.Store, "r1"), cursor(b.Store, "r2")
	seen := map[identity.Batch]int{}
	work := func(c *Cursor, at time.Time) {
		j := next(t, c, at, b)
		for _, id := range b.read(&j) {
			seen[id]++
			j.Done++
		}
		must(t, c.Finish(ctx, &j))
	}
	held := next(t, a, begin, b) // everything that is folded
	none(t, c, begin, b)
	b.add(7)
	work(c, begin)
	for _, id := range b.read(&held) {
		seen[id]++
		held.Done++
	}
	must(t, a.Finish(ctx, &held))
	b.add(3)
	work(a, begin.Add(time.Minute))
	if len(seen) != b.entries {
		t.Errorf("%d of %d entries were checked", len(seen), b.entries)
	}
	if r := none(t, c, begin.Add(59*time.Minute), b); r.Pass != 1 || r.Checked < uint64(b.entries) {
		t.Errorf("%+v", r)
	}
	work(c, begin.Add(time.Hour))
	for id, n := range seen {
		if n < 2 {
			t.Fatalf("%s was not checked in the second pass", id)
		}
	}
	if r := none(t, c, begin.Add(time.Hour), b); r.Pass != 2 || r.BeganAt != begin.Add(time.Hour).Unix() {
		t.Errorf("%+v", r)
	}
}

// A pass that takes longer than its period ends when its last chunk is checked.
func TestLongPass(t *testing.T) {
	b := newBucket(t)
	b.add(10)
	a, c := cursor(b.Store, "r1"), cursor(b.Store, "r2")
	j := next(t, a, begin, b)
	at := begin.Add(2 * time.Hour)
	must(t, a.Move(t.Context(), at, &j, false))
	none(t, c, at, b)
	must(t, a.Finish(t.Context(), &j))
	next(t, c, at, b)
}

// Files that were merged since have their entries in another order: the chunk is checked from its beginning.
func TestMergedFilesAreReadAgain(t *testing.T) {
	ctx := t.Context()
	b := newBucket(t)
	b.add(5)
	c := cursor(b.Store, "r1")
	j := next(t, c, begin, b)
	j.Done = 3
	must(t, c.Move(ctx, begin, &j, true))
	for range 12 {
		b.add(5)
	}
	if f, err := b.head().FilesAfter(ctx, b.Store, 0); err != nil || len(f) >= 13 || f[0].Key == j.Key {
		t.Fatalf("%d files, nothing was merged: %v", len(f), err)
	}
	j = next(t, c, begin, b)
	found := map[identity.Batch]bool{}
	for _, id := range b.read(&j) {
		found[id] = true
	}
	for n := range 5 {
		if !found[entry(n).ID] {
			t.Errorf("entry %d is not checked", n)
		}
	}
}

// What was taken is not taken again when an answer is lost, and a damaged record begins the scrub from its beginning.
func TestLostAnswersAndDamage(t *testing.T) {
	b := newBucket(t)
	b.add(10)
	s := &lossy{Store: b.Store}
	c := cursor(s, "r1")
	for range 3 {
		s.lose = true
		j := next(t, c, begin, b)
		if r := none(t, cursor(b.Store, "r2"), begin, b); len(r.Chunks) != 1 || r.Chunks[0].First != j.First {
			t.Errorf("%+v", r)
		}
	}
	_, err := b.Put(t.Context(), layout.ScrubKey, []byte("damaged"), objstore.PutOptions{})
	must(t, err)
	if j := next(t, c, begin, b); j.First != 1 {
		t.Errorf("%+v", j.Chunk)
	}
	_, err = b.Put(t.Context(), layout.ScrubKey, []byte(`{"schema":"lightmetrics.scrub.v2"}`), objstore.PutOptions{})
	must(t, err)
	if _, _, ok, err := c.Next(t.Context(), begin, b.head()); ok || err == nil {
		t.Error("the record of a newer release was replaced")
	}
}

// lossy loses an answer of a write that was applied.
type lossy struct {
	objstore.Store
	lose bool
}

func (l *lossy) lost(i objstore.Info, err error) (objstore.Info, error) {
	if l.lose && err == nil {
		l.lose = false
		return objstore.Info{}, &objstore.Error{Op: "put", Err: objstore.ErrUnknown}
	}
	return i, err
}

func (l *lossy) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return l.lost(l.Store.Create(ctx, key, b, o))
}

func (l *lossy) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return l.lost(l.Store.Replace(ctx, key, b, etag, o))
}

// A pass has ended when everything was checked that there was, also of an empty journal; the next one knows of it, and when
// everything was checked last.
func TestPassesEnd(t *testing.T) {
	ctx := t.Context()
	b := newBucket(t)
	c := cursor(b.Store, "r1")
	if r := none(t, c, begin, b); r.EndedAt != begin.Unix() {
		t.Errorf("an empty pass: %+v", r)
	}
	b.add(10)
	j := next(t, c, begin.Add(time.Hour), b)
	j.Done, j.Bytes, j.Suspects = 10, 90, 2
	must(t, c.Move(ctx, begin.Add(time.Hour), &j, true))
	r, _, err := record.Read(ctx, b.Store, layout.ScrubKey, Kind, ParseRecord)
	must(t, err)
	if n, bytes, suspects := r.Progress(); n != 10 || bytes != 90 || suspects != 2 || r.EndedAt != begin.Unix() {
		t.Errorf("under way: %+v", r)
	}
	j = next(t, c, begin.Add(time.Hour), b)
	must(t, c.Finish(ctx, &j))
	j = next(t, c, begin.Add(61*time.Minute), b) // the second pass
	if j.Done != 0 || j.Bytes != 0 {
		t.Errorf("%+v", j.Chunk)
	}
	r, _, err = record.Read(ctx, b.Store, layout.ScrubKey, Kind, ParseRecord)
	must(t, err)
	want := Pass{Pass: 1, BeganAt: begin.Unix(), EndedAt: begin.Unix(), Checked: 10, Bytes: 90, Suspects: 2}
	if r.Pass != 2 || r.EndedAt != 0 || r.Last == nil || *r.Last != want || r.VerifiedSince() != begin.Unix() {
		t.Errorf("%+v, last %+v", r, r.Last)
	}
	must(t, c.Finish(ctx, &j))
	none(t, c, begin.Add(62*time.Minute), b)
	r = none(t, c, begin.Add(63*time.Minute), b)
	if r.EndedAt != begin.Add(62*time.Minute).Unix() || r.VerifiedSince() != begin.Add(61*time.Minute).Unix() {
		t.Errorf("%+v", r)
	}
	if due := r.Due(time.Hour); !due.Equal(begin.Add(121 * time.Minute)) {
		t.Error(due)
	}
}
