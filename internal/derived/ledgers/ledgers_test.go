package ledgers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func source(seed byte) *rand.ChaCha8 { return rand.NewChaCha8([32]byte{seed}) }

func entry(agent string, start, end uint64) journal.Entry {
	return journal.Entry{
		ID:      identity.Batch{Agent: agent, Boot: "boot", SeqStart: start, SeqEnd: end},
		Outcome: journal.Accepted, SHA256: identity.Sum(fmt.Appendf(nil, "%s/%d", agent, start)), Bytes: 100,
		At: int64(1e18 + start), MinTime: int64(1e18 + start - 5), MaxTime: int64(1e18 + start),
	}
}

func positions(n uint64) journal.Positions {
	return journal.Positions{Head: n, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: n}}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// dump is everything of a set, byte for byte.
func dump(s *Set) string {
	var b []byte
	for _, l := range s.After(identity.Boot{}, "", 1<<30) {
		b = l.AppendBinary(b)
	}
	return string(b)
}

func load(t *testing.T, s objstore.Getter) Loaded {
	t.Helper()
	l, err := LoadCheckpoint(t.Context(), s, nil)
	must(t, err)
	return l
}

func TestCheckpointReadsBack(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	from := load(t, s)
	saver := NewSaver(s, source(1), 10, from)
	conflict := entry("c", 0, 9)
	conflict.Outcome = journal.Conflict
	var overlaps int
	entries := []journal.Entry{entry("a", 0, 9), entry("a", 5, 14), entry("a", 30, 39), entry("b", 0, 9), conflict}
	for i := range uint64(3 * ledger.CheckpointWindow) { // some are folded
		entries = append(entries, entry("d", 20*i, 20*i+9))
	}
	from.Set.Apply(entries, func(c Change) { overlaps += len(c.Overlap) })
	if overlaps != 1 || from.Set.Boots() != 3 {
		t.Errorf("%d overlaps, %d boots", overlaps, from.Set.Boots())
	}
	moved, err := saver.Save(ctx, positions(3), 1)
	if err != nil || !moved {
		t.Fatal(moved, err)
	}
	got := load(t, s)
	if dump(got.Set) != dump(from.Set) || got.Positions.Head != 3 || len(got.Positions.Runs) != 1 {
		t.Errorf("%+v", got.Positions)
	}
	l := got.Set.Get(identity.Boot{Agent: "a", Boot: "boot"})
	if at, ok := l.FirstTime(); !ok || at != 1e18-5 || l.RecordCount() != 25 || len(l.Gaps(0)) != 1 {
		t.Errorf("first sample at %d, %d records", at, l.RecordCount())
	}
	// The same entries again change nothing, so nothing is written.
	got.Set.Apply(entries, nil)
	if moved, err := NewSaver(s, source(2), 10, got).Save(ctx, positions(3), 1); err != nil || moved {
		t.Errorf("%v, %v", moved, err)
	}
}

func TestDamagedPartsAreRefused(t *testing.T) {
	set := NewSet()
	set.Apply([]journal.Entry{entry("a", 0, 9), entry("b", 3, 9), entry("b", 30, 39)}, nil)
	b, err := marshalPart(set.parts[0].boots, maxPartBytes)
	must(t, err)
	if ls, err := ParsePart(b); err != nil || len(ls) != 2 {
		t.Fatal(err)
	}
	for i := range b {
		c := bytes.Clone(b)
		c[i] ^= 1
		if _, err := ParsePart(c); !record.Opaque(err) {
			t.Errorf("byte %d: %v", i, err)
		}
	}
}

// A restart over 100,000 boots reads the root and at most one part for each 1,024 boots, and a boot
// that changes writes one part.
func TestRestartOver100000Boots(t *testing.T) {
	ctx, s := t.Context(), storetest.Count(mem.New(nil))
	from := load(t, s)
	saver := NewSaver(s, source(1), 0, from)
	const boots = 100_000
	for i := range boots {
		agent := fmt.Sprint("host-", i)
		from.Set.Apply([]journal.Entry{entry(agent, 0, 9), entry(agent, 10, 19)}, nil)
	}
	_, err := saver.Save(ctx, positions(1), 0)
	must(t, err)
	s.Reset()
	got := load(t, s)
	if n := s.Of("get", ""); got.Set.Boots() != boots || n > 1+boots/1024 {
		t.Errorf("%d boots with %d requests", got.Set.Boots(), n)
	}
	s.Reset()
	from.Set.Apply([]journal.Entry{entry("host-7", 20, 29)}, nil)
	_, err = saver.Save(ctx, positions(2), 0)
	must(t, err)
	if parts, roots := s.Of("create", ""), s.Of("replace", ""); parts != 1 || roots != 1 {
		t.Errorf("%d parts and %d roots for one boot", parts, roots)
	}
}

// losing loses answers of writes, applied or not, and fails reads.
type losing struct {
	objstore.Store
	rnd *rand.Rand
}

func (s *losing) write(key string, do func() (objstore.Info, error)) (objstore.Info, error) {
	switch s.rnd.IntN(12) {
	case 0:
		return objstore.Info{}, &objstore.Error{Op: "put", Key: key, Err: objstore.ErrUnknown}
	case 1:
		_, _ = do()
		return objstore.Info{}, &objstore.Error{Op: "put", Key: key, Err: objstore.ErrUnknown}
	}
	return do()
}

func (s *losing) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(key, func() (objstore.Info, error) { return s.Store.Create(ctx, key, b, o) })
}

func (s *losing) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	return s.write(key, func() (objstore.Info, error) { return s.Store.Replace(ctx, key, b, etag, o) })
}

func (s *losing) Delete(ctx context.Context, key string) error {
	_, err := s.write(key, func() (objstore.Info, error) { return objstore.Info{}, s.Store.Delete(ctx, key) })
	return err
}

func (s *losing) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if s.rnd.IntN(12) == 0 {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrUnavailable}
	}
	return s.Store.Get(ctx, key, o)
}

// Two reconcilers save their sets on one store that loses answers, and die at times. Whatever is
// loaded has every entry up to its positions, and no part of it is missing.
func TestTwoSaversUnderFaults(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		twoSavers(t, seed)
	}
}

func twoSavers(t *testing.T, seed uint64) {
	ctx := t.Context()
	rnd := rand.New(rand.NewPCG(seed, 2))
	good := mem.New(nil)
	s := &losing{good, rnd}
	var log []journal.Entry // the journal: an entry for each number of the head
	type life struct {
		saver *Saver
		set   *Set
		at    uint64
	}
	begin := func() *life {
		l := load(t, good)
		return &life{NewSaver(s, source(byte(rnd.IntN(256))), 3, l), l.Set, l.Positions.Head}
	}
	lives := []*life{begin(), begin()}
	for now := range int64(150) {
		for range rnd.IntN(4) {
			log = append(log, entry(fmt.Sprint("agent-", rnd.IntN(40)), uint64(len(log))*10, uint64(len(log))*10+9))
		}
		i := rnd.IntN(2)
		switch l := lives[i]; rnd.IntN(8) {
		case 0:
			lives[i] = begin()
		case 1:
			_ = l.saver.Sweep(ctx, now)
		default:
			until := l.at + uint64(rnd.IntN(int(uint64(len(log))-l.at)+1))
			l.set.Apply(log[l.at:until], nil)
			l.at = until
			// More than what the positions say.
			l.set.Apply(log[until:min(len(log), int(until)+rnd.IntN(2))], nil)
			_, _ = l.saver.Save(ctx, positions(l.at), now)
		}
		got := load(t, good)
		want := NewSet()
		want.Apply(log[:got.Positions.Head], nil)
		for _, w := range want.After(identity.Boot{}, "", 1<<30) {
			if g := got.Set.Get(w.Boot()); g == nil || g.RecordCount() < w.RecordCount() {
				t.Fatalf("seed %d, step %d: %s has too few records", seed, now, w.Boot())
			}
		}
	}
	// With everybody swept, what is left is what the root names.
	last := begin()
	last.saver.store = good
	must(t, last.saver.Sweep(ctx, 1000))
	must(t, last.saver.deleteRetired(ctx, 2000))
	n := 0
	must(t, storetest.Each(ctx, good, layout.LedgersPrefix, func(o objstore.Info) error {
		// One of a root that is yet to come might still be named.
		number, _, _, err := layout.ParseLedgersPart(o.Key)
		if number <= last.saver.root.Number {
			n++
		}
		return err
	}))
	named := 0
	for _, p := range last.saver.root.Parts {
		if p.Key != "" {
			named++
		}
	}
	if n != named {
		t.Errorf("seed %d: %d parts are left, the root names %d", seed, n, named)
	}
}

// A root that can't be read is replaced by whoever has all ledgers, and its numbers are not used again.
func TestDamagedRootIsReplaced(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	from := load(t, s)
	saver := NewSaver(s, source(1), 0, from)
	from.Set.Apply([]journal.Entry{entry("a", 0, 9)}, nil)
	_, err := saver.Save(ctx, positions(1), 0)
	must(t, err)
	_, err = s.Put(ctx, layout.LedgersKey, []byte("damaged"), objstore.PutOptions{})
	must(t, err)
	if _, err := LoadCheckpoint(ctx, s, nil); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("%v", err)
	}
	fresh := Loaded{Set: NewSet()}
	saver = NewSaver(s, source(2), 0, fresh)
	fresh.Set.Apply([]journal.Entry{entry("a", 0, 9), entry("b", 0, 9)}, nil)
	if moved, err := saver.Save(ctx, positions(2), 0); err != nil || !moved {
		t.Fatal(moved, err)
	}
	if got := load(t, s); got.Set.Boots() != 2 || got.root.Number != 2 {
		t.Errorf("%d boots, root %d", got.Set.Boots(), got.root.Number)
	}
}

// A copy of a bucket may have a root without its parts. It is of no use, and the next save replaces it.
func TestRootWithoutItsPartsIsReplaced(t *testing.T) {
	ctx, s := context.Background(), mem.New(nil)
	set := NewSet()
	set.Apply([]journal.Entry{entry("a", 0, 9)}, func(Change) {})
	_, err := NewSaver(s, source(1), 0, Loaded{Set: set}).Save(ctx, positions(1), 0)
	must(t, err)
	for _, p := range load(t, s).root.Parts {
		if p.Key != "" {
			must(t, s.Delete(ctx, p.Key))
		}
	}
	if _, err := LoadCheckpoint(ctx, s, nil); !record.Unreadable(err) {
		t.Fatalf("%v", err)
	}
	rebuilt := NewSet()
	rebuilt.Apply([]journal.Entry{entry("a", 0, 9)}, func(Change) {})
	w := NewSaver(s, source(2), 0, Loaded{Set: rebuilt})
	for range 2 { // the first one learns of the root
		_, err = w.Save(ctx, positions(2), 0)
		must(t, err)
	}
	if got := load(t, s); dump(got.Set) != dump(set) {
		t.Errorf("%s, want %s", dump(got.Set), dump(set))
	}
}

// A part that is too large to be written keeps the root where it is. The parts before it are not taken to be written
// by then: a root that named them would be of no use.
func TestAPartThatIsTooLargeLosesNoOther(t *testing.T) {
	ctx, s := t.Context(), mem.New(nil)
	set := newSet(2)
	var entries [2]journal.Entry
	for i := range 100 {
		e := entry(fmt.Sprint("agent-", i), 0, 9)
		entries[indexOf(e.ID.BootOf(), 2)] = e
	}
	set.Apply(entries[:], nil)
	w := NewSaver(s, source(1), 0, Loaded{Set: set})
	first, err := marshalPart(set.parts[0].boots, maxPartBytes)
	must(t, err)
	payload, err := ParsePart(first)
	must(t, err)
	w.partLimit = len(payload[0].AppendBinary(nil))
	long := entries[1]
	long.ID.Boot = "another-boot-of-the-same-part"
	for i := 0; indexOf(long.ID.BootOf(), 2) != 1; i++ {
		long.ID.Boot = fmt.Sprint("another-boot-", i)
	}
	set.Apply([]journal.Entry{long}, nil)
	if moved, err := w.Save(ctx, positions(1), 0); err == nil || moved {
		t.Fatalf("moved %v, %v", moved, err)
	}
	w.partLimit = maxPartBytes
	_, err = w.Save(ctx, positions(1), 0)
	must(t, err)
	if got := load(t, s); got.Set.Boots() != 3 || dump(got.Set) != dump(set) {
		t.Errorf("%d boots", got.Set.Boots())
	}
}

// The boots with gaps and overlaps are those of which the ledgers say so, however they came to be, in memory and in a
// set that was read.
func TestUnevenBootsAreKnown(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	s, store := NewSet(), mem.New(nil)
	check := func(s *Set) {
		t.Helper()
		var want []string
		for _, l := range s.After(identity.Boot{}, "", 1<<30) {
			if len(l.Gaps(1))+len(l.Overlaps(1)) > 0 {
				want = append(want, l.Boot().String())
			}
		}
		var got []string
		ls, n := s.Uneven(1 << 30)
		for _, l := range ls {
			got = append(got, l.Boot().String())
		}
		if n != len(want) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %d %v, want %v", n, got, want)
		}
		if few, n := s.Uneven(2); n != len(want) || len(few) != min(2, n) || n > 0 && few[0].Boot() != ls[0].Boot() {
			t.Fatalf("two of them: %d of %d", len(few), n)
		}
	}
	closed := 0
	for range 3000 {
		_, before := s.Uneven(0)
		start := uint64(rnd.IntN(8) * 10)
		s.Apply([]journal.Entry{entry(fmt.Sprint("agent-", rnd.IntN(300)), start, start+9+uint64(rnd.IntN(40)/39))}, nil)
		if _, after := s.Uneven(0); after < before {
			closed++
		}
		check(s)
	}
	if closed == 0 {
		t.Error("no boot has lost its last gap")
	}
	_, err := NewSaver(store, source(1), 1, Loaded{Set: s}).Save(t.Context(), positions(1), 0)
	must(t, err)
	check(load(t, store).Set)
}

// A list costs what is asked for, however many boots there are, and so do the boots with gaps, which every answer names.
func TestListsCostWhatTheyReturn(t *testing.T) {
	costs := func(boots int) [2]float64 {
		s := NewSet()
		for i := range boots {
			agent := fmt.Sprintf("agent-%06d", i)
			s.Apply([]journal.Entry{entry(agent, 0, 9), entry(agent, 20, 29)}, nil)
		}
		at := identity.Boot{Agent: fmt.Sprintf("agent-%06d", boots/2)}
		return [2]float64{
			testing.AllocsPerRun(100, func() { s.Uneven(10) }),
			testing.AllocsPerRun(100, func() { s.After(at, "", 10) }),
		}
	}
	few := costs(500)
	for _, n := range []int{2000, 8000} {
		if many := costs(n); many != few || few[0] > 100 {
			t.Errorf("%v allocations for 10 of %d boots, %v for 10 of 500", many, n, few)
		}
	}
}
