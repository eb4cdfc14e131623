package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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

// A batch whose home is another region is none of this one, and nothing of it is here.
func TestElsewhere(t *testing.T) {
	e := entry("a", 1)
	e.Outcome, e.HomeRegion, e.ClaimEpoch = Elsewhere, "eu", 3
	if e.Outcome.Counts() || e.Outcome.Conflict() || !Duplicate.Counts() || Conflict.Counts() || Outcome(7).Counts() {
		t.Error("what counts is wrong")
	}
	if err := e.Validate(); err != nil {
		t.Error(err)
	}
	homeless, inline, generation := e, e, e
	homeless.HomeRegion, inline.Inline, generation.Generation = "", true, 1
	for _, bad := range []Entry{homeless, inline, generation} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
}

// Folding keeps one entry of each kind: a batch may be elsewhere first and of this region later.
func TestFoldingKeepsWhatIsElsewhere(t *testing.T) {
	here, again, there, twice := entry("a", 1), entry("a", 1), entry("a", 1), entry("a", 1)
	again.Outcome, there.Outcome, there.HomeRegion, twice.Outcome, twice.HomeRegion = Duplicate, Elsewhere, "eu", Elsewhere, "us"
	got := unique([]Entry{there, again, twice, here})
	if len(got) != 2 || got[0] != here || got[1].Outcome != Elsewhere {
		t.Errorf("%+v", got)
	}
	b, err := marshalFolded(got)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseFolded(b); err != nil || b[5] != versionElsewhere || !slices.Equal(back, got) {
		t.Errorf("%+v, %v, version %d", back, err, b[5])
	}
	// The other way around one value would have two forms.
	plain, err := marshalFolded([]Entry{here})
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []byte{versionEpochs, versionElsewhere} {
		plain[5] = version
		if _, err := ParseFolded(withChecksum(plain)); !record.Opaque(err) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	plain[5] = versionElsewhere + 1
	if _, err := ParseFolded(withChecksum(plain)); !errors.Is(err, record.ErrNewerVersion) {
		t.Error(err)
	}
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
