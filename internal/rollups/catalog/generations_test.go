package catalog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// What a generation's key can hold, by a letter.
const (
	isSet      = 's'
	isAborted  = 'a'
	isExpired  = 'x'
	isReplaced = 'r' // by the next generation
	isCorrupt  = 'c'
	isNewer    = 'n'
	isGone     = 'g'
)

const allKinds = "saxrcng"

var errOf = map[byte]error{isCorrupt: record.ErrCorrupt, isNewer: record.ErrNewerVersion, isGone: objstore.ErrNotFound}

// generations are those of a slot from the first one on, a letter each.
func generations(kinds string) []Generation {
	var out []Generation
	for i := range len(kinds) {
		g := Generation{Name: Name{Hour: testHour, Shard: 1, Resolution: timegrid.Raw, Generation: uint64(i) + 1}}
		switch kinds[i] {
		case isSet:
			g.Record.Block = &Block{Name: g.Name}
		case isAborted:
			g.Record.Aborted = &Aborted{Name: g.Name}
		case isExpired:
			g.Record.Removed = &Removed{Name: g.Name}
		case isReplaced:
			g.Record.Removed = &Removed{Name: g.Name, SupersededBy: g.Name.Generation + 1}
		default:
			g.Err = fmt.Errorf("generation %d: %w", i+1, errOf[kinds[i]])
		}
		out = append(out, g)
	}
	return out
}

func describe(s State) string {
	d := fmt.Sprintf("top %d committed %d", s.Top, s.Committed)
	if s.Block != nil {
		d += fmt.Sprintf(" block %d", s.Block.Name.Generation)
	}
	if s.Removed != nil {
		d += fmt.Sprintf(" removed %d", s.Removed.Name.Generation)
	}
	if s.Expired() {
		d += " expired"
	}
	if by := s.Missing(); by > 0 {
		d += fmt.Sprintf(" missing %d", by)
	}
	for _, g := range s.Unreadable {
		d += fmt.Sprintf(" doubt %d", g.Name.Generation)
	}
	return d
}

func TestWhichGenerationCounts(t *testing.T) {
	for kinds, want := range map[string]string{
		"":  "top 0 committed 0",
		"s": "top 1 committed 1 block 1", "a": "top 1 committed 0", "x": "top 1 committed 1 removed 1 expired", "r": "top 1 committed 1 removed 1 missing 2",
		"c": "top 1 committed 0 doubt 1", "n": "top 1 committed 0 doubt 1", "g": "top 1 committed 0 doubt 1",
		// The highest one that was committed, and nothing below it.
		"ss": "top 2 committed 2 block 2", "rs": "top 2 committed 2 block 2", "cs": "top 2 committed 2 block 2", "ns": "top 2 committed 2 block 2", "gs": "top 2 committed 2 block 2",
		"as": "top 2 committed 2 block 2", "xs": "top 2 committed 2 block 2", "sx": "top 2 committed 2 removed 2 expired", "rx": "top 2 committed 2 removed 2 expired",
		"sr": "top 2 committed 2 removed 2 missing 3",
		// Aborted ones above it are nothing.
		"sa": "top 2 committed 1 block 1", "saa": "top 3 committed 1 block 1", "xa": "top 2 committed 1 removed 1 expired", "aa": "top 2 committed 0", "aca": "top 3 committed 0 doubt 2",
		// Where nobody can tell.
		"sc": "top 2 committed 1 block 1 doubt 2", "sn": "top 2 committed 1 block 1 doubt 2", "sg": "top 2 committed 1 block 1 doubt 2",
		"scan": "top 4 committed 1 block 1 doubt 4 doubt 2", "csc": "top 3 committed 2 block 2 doubt 3", "xc": "top 2 committed 1 removed 1 expired doubt 2",
		// What replaced the first is listed, and can't be read.
		"rc": "top 2 committed 1 removed 1 doubt 2", "rg": "top 2 committed 1 removed 1 doubt 2",
	} {
		if got := describe(Fold(generations(kinds))); got != want {
			t.Errorf("%q: %s, want %s", kinds, got, want)
		}
	}
}

// What replaced a block is missed whatever stands between the two.
func TestMissingAboveAborted(t *testing.T) {
	of := generations("xa")
	of[0].Record.Removed.SupersededBy = 3
	if got, want := describe(Fold(of)), "top 2 committed 1 removed 1 missing 3"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// reference says the same in another way: from the lowest generation up, whatever is
// committed makes everything below it void.
func reference(kinds string) string {
	committed, kind, doubt := 0, byte(0), []int(nil)
	for i := range len(kinds) {
		switch kinds[i] {
		case isSet, isExpired, isReplaced:
			committed, kind, doubt = i+1, kinds[i], nil
		case isCorrupt, isNewer, isGone:
			doubt = append(doubt, i+1)
		}
	}
	d := fmt.Sprintf("top %d committed %d", len(kinds), committed)
	switch {
	case kind == isSet:
		d += fmt.Sprintf(" block %d", committed)
	case kind != 0:
		d += fmt.Sprintf(" removed %d", committed)
	}
	if kind == isExpired {
		d += " expired"
	}
	if kind == isReplaced && committed == len(kinds) {
		d += fmt.Sprintf(" missing %d", committed+1)
	}
	slices.Reverse(doubt)
	for _, n := range doubt {
		d += fmt.Sprintf(" doubt %d", n)
	}
	return d
}

// Every slot of up to five generations, in any order.
func TestFoldIsTheReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var check func(kinds string)
	check = func(kinds string) {
		of := generations(kinds)
		rng.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
		if got, want := describe(Fold(of)), reference(kinds); got != want {
			t.Fatalf("%q: %s, want %s", kinds, got, want)
		}
		if len(kinds) < 5 {
			for _, k := range allKinds {
				check(kinds + string(k))
			}
		}
	}
	check("")
}

// slotStore has a slot of such generations, and gives the errors that they say.
type slotStore struct {
	of   map[string]Generation
	read []uint64
}

func (s *slotStore) get(_ context.Context, key string) (Record, objstore.Info, error) {
	g := s.of[key]
	s.read = append(s.read, g.Name.Generation)
	return g.Record, objstore.Info{Key: key, ETag: "1"}, g.Err
}

func newSlotStore(kinds string) (*slotStore, Slot) {
	s, of := &slotStore{of: map[string]Generation{}}, Slot{Name: Name{Hour: testHour, Shard: 1, Resolution: timegrid.Raw}}
	for _, g := range generations(kinds) {
		s.of[g.Name.Key()] = g
		of.Listed = append(of.Listed, Listed{g.Name, objstore.Info{Key: g.Name.Key(), ETag: "1"}})
	}
	return s, of
}

// A reader reads from the top down to what counts, and what it read once only if it is in doubt.
func TestReaderReadsDownToWhatCounts(t *testing.T) {
	s, of := newSlotStore("srsca")
	r := NewReader(ReaderConfig{Read: s.get, Limit: 100})
	for i, want := range [][]uint64{{5, 4, 3}, {4}} {
		s.read = nil
		st, err := r.State(t.Context(), of)
		if err != nil || describe(st) != "top 5 committed 3 block 3 doubt 4" || !slices.Equal(s.read, want) {
			t.Errorf("%d: %s, %v, read %d", i, describe(st), err, s.read)
		}
	}
	s.read = nil
	if all, err := r.All(t.Context(), of); err != nil || describe(Fold(all)) != reference("srsca") || !slices.Equal(s.read, []uint64{1, 2, 4}) {
		t.Errorf("%v, read %d", err, s.read)
	}
	// Another ETag is another record, and so is one without.
	for _, etag := range []string{"2", ""} {
		s.read = nil
		l := of.Listed[2]
		l.Info.ETag = etag
		if g, err := r.Generation(t.Context(), l); err != nil || !g.Committed() || len(s.read) != 1 {
			t.Errorf("ETag %q: %+v, %v, read %d", etag, g, err, s.read)
		}
	}
	r.Keep(func(n Name) bool { return n.Generation == 5 })
	s.read = nil
	if _, err := r.State(t.Context(), of); err != nil || !slices.Equal(s.read, []uint64{4, 3}) {
		t.Errorf("%v, read %d", err, s.read)
	}
	down := errors.New("the store is down")
	s.of[of.Listed[3].Name.Key()] = Generation{Err: down}
	if _, err := r.State(t.Context(), of); !errors.Is(err, down) {
		t.Errorf("%v", err)
	}
}

func TestReaderIsBounded(t *testing.T) {
	s, of := newSlotStore("aaaaaaaaaaaaaaaaaaaas")
	s.of[of.Listed[20].Name.Key()].Record.Block.Objects = make([]Object, 20)
	r := NewReader(ReaderConfig{Read: s.get, Limit: 8})
	for range 3 {
		if _, err := r.All(t.Context(), of); err != nil {
			t.Fatal(err)
		}
		if n := r.known.Len(); n == 0 || n > 8 || r.known.Weight() > 8 {
			t.Fatalf("%d records, weight %d", n, r.known.Weight())
		}
	}
	none := NewReader(ReaderConfig{Read: s.get})
	if _, err := none.All(t.Context(), of); err != nil || none.known.Len() != 0 {
		t.Errorf("%v, %d records", err, none.known.Len())
	}
}

// A block whose compaction can't be had is in doubt, and is read again; one that was found is read once.
func TestReaderFollowsCompactions(t *testing.T) {
	s := fault.New(mem.New(nil), 1)
	get := func(ctx context.Context, key string) (Record, objstore.Info, error) {
		return Read(ctx, s, "a", key)
	}
	_, compacted := source()
	put(t, s, Record{Block: compacted})
	r := NewReader(ReaderConfig{Read: get, Follow: true, Limit: 100, Trim: func(s *Block) { s.Inputs = Inputs{} }})
	list := func() Slot {
		for of, err := range Slots(t.Context(), s, objstore.ListOptions{Prefix: layout.BlockManifestsHour(compacted.Name.Hour)}) {
			if err != nil {
				t.Fatal(err)
			}
			if of.Name.Span == 0 {
				return of
			}
		}
		t.Fatal("nothing is listed")
		return Slot{}
	}
	if st, err := r.State(t.Context(), list()); err != nil || st.Committed != 0 || len(st.Unreadable) != 1 || !errors.Is(st.Unreadable[0].Err, objstore.ErrNotFound) {
		t.Fatalf("%s, %v", describe(st), err)
	}
	put(t, s, Record{Block: compaction()})
	for range 2 {
		st, err := r.State(t.Context(), list())
		if err != nil || st.Block == nil || st.Block.Redirect.Block == nil || st.Block.Redirect.Block.Name != compaction().Name || st.Block.Inputs.Batches() != 0 {
			t.Fatalf("%s, %v", describe(st), err)
		}
	}
	if n := s.Count("get", ""); n != 4 {
		t.Errorf("%d reads", n)
	}
}

// Slots stand apart by shard, resolution and span, over the pages of a listing.
func TestSlots(t *testing.T) {
	s := mem.New(nil)
	var want []string
	for _, n := range []Name{{Shard: 1, Resolution: timegrid.OneMinute}, {Shard: 1, Resolution: timegrid.OneMinute, Span: 24}, {Shard: 1, Resolution: timegrid.Raw}, {Shard: 2, Resolution: timegrid.Raw}} {
		n.Hour = testHour
		for n.Generation = 1; n.Generation <= 12; n.Generation++ {
			if _, err := s.Put(t.Context(), n.Key(), []byte("{}"), objstore.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		n.Generation = 0
		want = append(want, n.Key())
	}
	if _, err := s.Put(t.Context(), layout.BlockManifestsHour(testHour)+"foreign", nil, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for of, err := range Slots(t.Context(), s, objstore.ListOptions{Prefix: layout.ManifestsPrefix, Limit: 5}) {
		if err != nil || len(of.Listed) != 12 || of.Top() != 12 || of.Listed[0].Name.Generation != 1 {
			t.Fatalf("%+v, %v", of, err)
		}
		got = append(got, of.Name.Key())
	}
	slices.Sort(want)
	if !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("%q, want %q", got, want)
	}
	for of := range Slots(t.Context(), s, objstore.ListOptions{Prefix: layout.ManifestsPrefix, Limit: 5}) {
		if of.Top() != 12 {
			t.Errorf("cut short: %+v", of)
		}
		break
	}
}
