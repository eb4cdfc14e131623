package catalog

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const day0 = timegrid.Hour(20_000 * 24)

// compaction of two hours and two shards, with one object.
func compaction() *Block {
	n := Name{Hour: day0, Shard: 2, Resolution: timegrid.Raw, Generation: 1, Span: 2}
	c, x := identity.Sum([]byte("chunk")), identity.Sum([]byte("index"))
	s := &Block{
		AuthorityID: "a", Name: n, Shards: 4, Fence: 3, TransactionID: "t", PlanKey: layout.BlockPlan(n), PlanSHA256: identity.Sum([]byte("plan")),
		Counts: Counts{Series: 1, Samples: 4}, CreatedAt: 5, WorkerID: "w",
		Objects: []Object{{Metric: "up", ChunkKey: layout.RollupChunk(timegrid.Raw, day0, "up", c, 0), ChunkBytes: 10, ChunkSHA256: c, FooterOffset: 1,
			IndexKey: layout.RollupIndex(day0, x, 0), IndexBytes: 3, IndexSHA256: x, Series: 1, Samples: 4, MinTime: 1, MaxTime: 2}},
	}
	for h := range timegrid.Hour(2) {
		for id := shard.ID(2); id < 4; id++ {
			s.Sources = append(s.Sources, Name{Hour: day0 + h, Shard: id, Resolution: timegrid.Raw, Generation: 1 + uint64(h)})
		}
	}
	return s
}

// source is a set of the compaction's first hour, as it was and as it points there.
func source() (own, compacted *Block) {
	c := compaction()
	own = compaction()
	own.Name, own.Sources = Name{Hour: day0, Shard: 2, Resolution: timegrid.Raw, Generation: 1}, nil
	own.PlanKey = layout.BlockPlan(own.Name)
	return own, own.Compacted(c.Name, 7, "w")
}

func TestRecordsOfCompactions(t *testing.T) {
	own, compacted := source()
	for _, s := range []*Block{compaction(), own, compacted, compacted.Compacted(Name{Hour: day0, Shard: 0, Resolution: timegrid.Raw, Generation: 2, Span: 24}, 8, "w")} {
		b := s.Marshal()
		r, err := ParseRecord(s.Name.Key(), b)
		if err != nil || string(r.Block.Marshal()) != string(b) {
			t.Fatalf("%s: %v", b, err)
		}
	}
	if r := compacted.Remove(0, 1, "w"); len(r.Keys) != 2 || r.Keys[0] != own.Objects[0].ChunkKey {
		t.Errorf("removed: %q", r.Keys)
	}
	if compacted.Names(own.Objects[0].ChunkKey) {
		t.Error("a compacted block names its old objects")
	}
	const want = `"sources":[[0,2,1],[0,3,1],[1,2,2],[1,3,2]]}`
	if got := string(compaction().Marshal()); !strings.HasSuffix(got, want) || !strings.HasPrefix(got, `{"schema":"lightmetrics.rollup_compaction.v1","authority_id":"a","shard":2,`) {
		t.Error(got)
	}
	if key := compaction().Name.Key(); key != "manifests/v1/date=2024-10-04/hour=00/0002-raw.2h-0000000001.json" {
		t.Error(key)
	}
}

func TestBadRecordsOfCompactions(t *testing.T) {
	for name, spoil := range map[string]func(s *Block){
		"no sources":          func(s *Block) { s.Sources = nil },
		"source outside":      func(s *Block) { s.Sources[3].Hour += 2 },
		"source of a shard":   func(s *Block) { s.Sources[0].Shard = 1 },
		"source twice":        func(s *Block) { s.Sources[1] = s.Sources[0] },
		"source out of order": func(s *Block) { s.Sources[0], s.Sources[3] = s.Sources[3], s.Sources[0] },
		"generation 0":        func(s *Block) { s.Sources[0].Generation = 0 },
		"other plan":          func(s *Block) { s.PlanKey = layout.RollupPlan(day0, 2, 1) },
		"inputs": func(s *Block) {
			s.Inputs, _ = NewInputs([]identity.Batch{{Agent: "a", Boot: "b", SeqStart: 0, SeqEnd: 9}})
			s.Counts.Records, s.Counts.Published = 10, 10
		},
		"into another": func(s *Block) { s.Objects, s.Redirect = nil, &Redirect{Name: s.Name, WorkerID: "w"} },
	} {
		s := compaction()
		if spoil(s); s.Validate() == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for name, spoil := range map[string]func(s *Block){
		"into an hour":         func(s *Block) { s.Redirect.Name.Span = 0 },
		"into another window":  func(s *Block) { s.Redirect.Name.Resolution = timegrid.OneHour },
		"into hours elsewhere": func(s *Block) { s.Redirect.Name.Hour++ },
		"foreign keys":         func(s *Block) { s.Redirect.Keys[0] = layout.RollupIndex(day0+1, identity.Digest{1}, 0) },
		"objects too":          func(s *Block) { s.Objects = compaction().Objects },
		"sources":              func(s *Block) { s.Sources = compaction().Sources },
	} {
		_, s := source()
		spoil(s)
		if _, err := ParseRecord(s.Name.Key(), s.Marshal()); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEarlier(t *testing.T) {
	n := func(span uint16, gen uint64) Name {
		return Name{Hour: day0, Resolution: timegrid.Raw, Generation: gen, Span: span}
	}
	for _, c := range []struct {
		from, to Name
		want     bool
	}{{n(2, 1), n(24, 1), true}, {n(2, 5), n(24, 1), true}, {n(24, 1), n(2, 9), false}, {n(2, 1), n(2, 2), true}, {n(2, 2), n(2, 2), false}} {
		if got := (&Redirect{Name: c.from}).YieldsTo(c.to); got != c.want {
			t.Errorf("%s to %s: %t", c.from.Key(), c.to.Key(), got)
		}
	}
	if !(*Redirect)(nil).YieldsTo(n(2, 1)) {
		t.Error("a set of its own does not move")
	}
}

// Pieces of a compaction are stretches of hours with equal shards; what points elsewhere is masked.
func TestPieces(t *testing.T) {
	c := compaction()
	c.Name.Span = 4
	var blocks []*Block
	add := func(h timegrid.Hour, id shard.ID, into *Block) {
		s := &Block{Name: Name{Hour: day0 + h, Shard: id, Resolution: timegrid.Raw, Generation: 1}, Shards: 4}
		if into != nil {
			s.Redirect = &Redirect{Name: into.Name, Block: into}
		}
		blocks = append(blocks, s)
	}
	for h := range timegrid.Hour(4) {
		add(h, 2, c)
		if h == 1 {
			add(h, 3, nil) // late
		} else {
			add(h, 3, c)
		}
	}
	var got []string
	for _, p := range Pieces(blocks) {
		got = append(got, fmt.Sprintf("%d-%d %v %dh", p.From-day0, p.To-day0, p.Shards, p.Block.Name.Span))
	}
	if want := "0-0 [0002 0003] 4h, 1-1 [0002] 4h, 1-1 [] 0h, 2-3 [0002 0003] 4h"; strings.Join(got, ", ") != want {
		t.Errorf("%q", got)
	}
	p := Piece{Block: c, Shards: []shard.ID{2}}
	for i := range 50 {
		a := fmt.Sprint("agent-", i)
		if p.Holds(a) != (shard.Of(a, 4) == 2) {
			t.Errorf("%s: %t", a, p.Holds(a))
		}
	}
}
