package journal

import (
	"context"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// epochLog is a log of epochs that a test moves.
type epochLog struct {
	epoch          uint64
	names          map[identity.Digest]bool
	readings, asOf uint64
	gone           bool
}

type epochSet struct {
	epoch uint64
	names map[identity.Digest]bool
}

func (s epochSet) Epoch() uint64              { return s.epoch }
func (s epochSet) Has(d identity.Digest) bool { return s.names[d] }

func (l *epochLog) Held() (Condemned, uint64) {
	if l.gone || l.epoch == 0 {
		return nil, 0
	}
	return epochSet{l.epoch, l.names}, l.asOf
}
func (l *epochLog) Readings() uint64 { return l.readings }
func (l *epochLog) read()            { l.readings++; l.asOf = l.readings }

func namingWriter(t *testing.T, s WriterStore, seed byte, l *epochLog) *Writer {
	t.Helper()
	w, err := NewWriter(WriterConfig{Store: s, Rand: source(seed), Clock: func() int64 { return 1 },
		Opening: Opening{Writer: "w", Role: RoleCollector, Authority: "authority"}, Epochs: l})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// write makes a segment with one entry, and returns it and whether its entry is spared.
func write(t *testing.T, s objstore.Getter, w *Writer, n uint64) (*Segment, bool) {
	t.Helper()
	no, err := w.Add(entry("a", n))
	if err != nil {
		t.Fatal(err)
	}
	at, done, err := w.Flush(t.Context())
	if err != nil || done != no {
		t.Fatal(at, done, err)
	}
	return segment(t, s, at), w.Spared(no)
}

func segment(t *testing.T, s objstore.Getter, at Position) *Segment {
	t.Helper()
	seg, err := readSegment(t.Context(), s, at)
	if err != nil {
		t.Fatal(err)
	}
	return seg
}

func TestSegmentsNameWhatWasReadInTheirRun(t *testing.T) {
	s := mem.New(nil)
	condemned := entry("a", 5).SHA256
	l := &epochLog{epoch: 3, names: map[identity.Digest]bool{}}
	l.read()
	w := namingWriter(t, s, 1, l)
	want := func(what string, n uint64, epoch uint64, spared bool) *Segment {
		t.Helper()
		seg, got := write(t, s, w, n)
		if !seg.Epochs || seg.Epoch != epoch || got != spared {
			t.Fatalf("%s: segment %d, names epochs %v, %d, spared %v", what, seg.Segment, seg.Epochs, seg.Epoch, got)
		}
		return seg
	}
	want("segment 0", 1, 0, false)
	want("read before the run was known to be open", 2, 0, false)
	l.read()
	want("read in the run", 3, 3, true)
	l.epoch, l.names = 4, map[identity.Digest]bool{condemned: true}
	want("one that is condemned", 5, 4, false)
	want("another", 6, 4, true)
	l.epoch = 3
	want("the epoch never falls", 7, 4, false)
	l.epoch = 4
	// What is condemned between an entry and the segment that has it.
	no, err := w.Add(entry("a", 20))
	if err != nil {
		t.Fatal(err)
	}
	l.epoch, l.names = 5, map[identity.Digest]bool{condemned: true, entry("a", 20).SHA256: true}
	if at, _, err := w.Flush(t.Context()); err != nil || w.Spared(no) || segment(t, s, at).Epoch != 5 {
		t.Errorf("%v, spared %v: its segment names an epoch that condemns it", err, w.Spared(no))
	}
	// An idle run says that it holds a new epoch, once.
	if w.Behind() {
		t.Error("behind the epoch that it names")
	}
	l.epoch = 6
	if !w.Behind() {
		t.Error("not behind")
	}
	if err := w.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seg := segment(t, s, Position{w.run, w.next - 1}); seg.Epoch != 6 || len(seg.Entries) != 0 || w.Behind() {
		t.Errorf("renewed by %+v, behind %v", seg, w.Behind())
	}
	// What failed is sent again without another entry: garbage collection waits for it.
	l.epoch = 7
	w.store = silent{s}
	if err := w.Renew(t.Context()); err == nil || !w.Behind() {
		t.Errorf("%v, behind %v", err, w.Behind())
	}
	w.store = s
	if err := w.Renew(t.Context()); err != nil || w.Behind() || segment(t, s, Position{w.run, w.next - 1}).Epoch != 7 {
		t.Errorf("%v, behind %v", err, w.Behind())
	}
	// Fenced: what was spared is not in the next run.
	if err := Fence(t.Context(), s, Position{w.run, w.next}); err != nil {
		t.Fatal(err)
	}
	if seg := want("another run", 8, 0, false); seg.Segment != 0 {
		t.Errorf("segment %d", seg.Segment)
	}
	want("not read again yet", 9, 0, false)
	l.read()
	want("read again", 10, 7, true)
	// A run that can't follow the log ends, and the next one names nothing, all of its life.
	l.gone = true
	if seg := want("gone", 11, 7, false); !seg.Closed {
		t.Error("it goes on")
	}
	for n := uint64(12); n < 14; n++ {
		if seg, spared := write(t, s, w, n); seg.Epochs || spared {
			t.Errorf("%+v, spared %v", seg, spared)
		}
	}
	l.gone = false
	if !w.Behind() {
		t.Error("the next run could name epochs")
	}
	if err := w.Renew(t.Context()); err != nil || w.Open() {
		t.Error("it goes on", err)
	}
	want("again", 14, 0, false)
	if _, err := NewWriter(WriterConfig{Store: s, Rand: source(9), Clock: func() int64 { return 1 }, Epochs: l, Opening: Opening{Writer: "w", Role: RoleSpooler, Authority: "a"}}); err == nil {
		t.Error("a spooler names epochs")
	}
}

type silent struct{ WriterStore }

func (silent) Create(_ context.Context, key string, _ []byte, _ objstore.PutOptions) (objstore.Info, error) {
	return objstore.Info{}, &objstore.Error{Op: "create", Key: key, Err: objstore.ErrUnavailable}
}

func poll(t *testing.T, b *Barrier) int {
	t.Helper()
	left, err := b.Poll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return left
}

// TestBarrier: each kind of run, alone.
func TestBarrier(t *testing.T) {
	naming := func(t *testing.T, s *mem.Store, epoch uint64, segments int) (*Writer, *epochLog) {
		l := &epochLog{epoch: epoch}
		l.read()
		w := namingWriter(t, s, 1, l)
		for n := range segments {
			write(t, s, w, uint64(n)+1)
			l.read()
		}
		return w, l
	}
	barrier := func(s BarrierStore) *Barrier { return NewBarrier(s, "authority", 5) }
	for name, c := range map[string]struct {
		prepare func(t *testing.T, s *mem.Store)
		left    int
	}{
		"no runs":                {func(*testing.T, *mem.Store) {}, 0},
		"one that names none":    {func(t *testing.T, s *mem.Store) { write(t, s, newWriter(t, s, 1), 1) }, 0},
		"one that named nothing": {func(t *testing.T, s *mem.Store) { naming(t, s, 9, 1) }, 1},
		"one that names it":      {func(t *testing.T, s *mem.Store) { naming(t, s, 5, 2) }, 0},
		"one before it":          {func(t *testing.T, s *mem.Store) { naming(t, s, 4, 30) }, 1},
		"one that came to it late": {func(t *testing.T, s *mem.Store) {
			w, l := naming(t, s, 4, 30)
			l.epoch = 5
			write(t, s, w, 99)
		}, 0},
		"a closed one": {func(t *testing.T, s *mem.Store) {
			w, _ := naming(t, s, 4, 3)
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}, 0},
		"a fenced one": {func(t *testing.T, s *mem.Store) {
			w, _ := naming(t, s, 4, 7)
			if err := Fence(t.Context(), s, Position{w.run, w.next}); err != nil {
				t.Fatal(err)
			}
		}, 0},
		"one whose opening came back": {func(t *testing.T, s *mem.Store) {
			w, _ := naming(t, s, 4, 1)
			seg := segment(t, s, Position{w.run, 0})
			if err := s.Delete(t.Context(), seg.Key()); err != nil {
				t.Fatal(err)
			}
		}, 0},
	} {
		s := mem.New(nil)
		c.prepare(t, s)
		if left := poll(t, barrier(s)); left != c.left {
			t.Errorf("%s: %d runs are left, want %d", name, left, c.left)
		}
	}
	// A run that was listed, and is then gone with everything, was folded to its end.
	s := mem.New(nil)
	w, _ := naming(t, s, 4, 1)
	b := barrier(s)
	if left := poll(t, b); left != 1 {
		t.Fatalf("%d are left", left)
	}
	if err := s.Delete(t.Context(), Position{w.run, 0}.Key()); err != nil {
		t.Fatal(err)
	}
	if left := poll(t, b); left != 0 {
		t.Errorf("%d are left", left)
	}
}

// foldAndDelete folds what is there, and deletes the segments.
func foldAndDelete(t *testing.T, s *mem.Store) {
	t.Helper()
	f, err := NewFolder(FolderConfig{Store: s, Rand: source(7)})
	if err != nil {
		t.Fatal(err)
	}
	from, err := f.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	follower, _ := follow(t, s, from, f)
	if _, err := follower.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	foldAll(t, follower, f)
}

// TestBarrierBesideFolding: a long run's segments are deleted, a late fence may stand in their place, and the run goes on.
func TestBarrierBesideFolding(t *testing.T) {
	s := mem.New(nil)
	l := &epochLog{epoch: 4}
	l.read()
	w := namingWriter(t, s, 1, l)
	for n := uint64(1); n < 5; n++ {
		write(t, s, w, n)
		l.read()
	}
	foldAndDelete(t, s)
	if _, err := readSegment(t.Context(), s, Position{w.run, 0}); err == nil {
		t.Fatal("segment 0 is still there")
	}
	b := NewBarrier(s, "authority", 5)
	if left := poll(t, b); left != 1 {
		t.Fatalf("%d are left: the head names a run that the listing does not show", left)
	}
	// One that was read before it was folded, and fenced there after it was deleted.
	late := NewBarrier(s, "authority", 5)
	late.runs[w.run], late.listed = &crossing{id: w.run, next: 2}, true
	held := &beforeHead{Store: s, at: 2}
	late.store = held
	if err := Fence(t.Context(), s, Position{w.run, 2}); err != nil {
		t.Fatal(err)
	}
	if left, err := late.Poll(t.Context()); err != nil || left != 1 {
		t.Errorf("%d are left, %v: the fence came late, and ends nothing", left, err)
	}
	l.epoch = 5
	write(t, s, w, 9)
	for _, b := range []*Barrier{b, late} {
		if left := poll(t, b); left != 0 {
			t.Errorf("%d are left", left)
		}
	}
}

// TestBarrierForgetsARunThatTheHeadForgot: between two questions a run may end, be folded and be forgotten by the head, as
// where another process collects meanwhile.
func TestBarrierForgetsARunThatTheHeadForgot(t *testing.T) {
	for what, folded := range map[string]bool{"segments that were there": false, "segments that the head had": true} {
		s := mem.New(nil)
		l := &epochLog{epoch: 4}
		l.read()
		w := namingWriter(t, s, 1, l)
		for n := uint64(1); n < 5; n++ {
			write(t, s, w, n)
			l.read()
		}
		if folded {
			foldAndDelete(t, s)
		}
		b := NewBarrier(s, "authority", 5)
		if left := poll(t, b); left != 1 {
			t.Fatalf("%s: %d are left", what, left)
		}
		if err := w.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		foldAndDelete(t, s)
		head, etag, err := ReadHead(t.Context(), s)
		if err != nil || head.Run(w.run) == nil || head.Run(w.run).Ended == 0 {
			t.Fatal(head, err)
		}
		head.Number++
		head.Runs = nil
		if _, err := moveHead(t.Context(), s, etag, head); err != nil {
			t.Fatal(err)
		}
		if left := poll(t, b); left != 0 {
			t.Errorf("%s: %d are left", what, left)
		}
	}
}

// beforeHead answers the first read of the head as if it were not there yet.
type beforeHead struct {
	*mem.Store
	at int
}

func (s *beforeHead) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if strings.HasSuffix(key, "head.json") && s.at > 0 {
		s.at = 0
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrNotFound}
	}
	return s.Store.Get(ctx, key, o)
}
