package catalog

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var update = flag.Bool("update", false, "write the golden files")

const testHour = timegrid.Hour(498_000) // 2026-10-24T00

// testSet has one chunk and inputs of the agents.
func testSet(s shard.ID, res timegrid.Resolution, gen, supersedes uint64, ids ...identity.Batch) *Block {
	in, err := NewInputs(ids)
	if err != nil {
		panic(err)
	}
	chunk, index := identity.Sum([]byte("chunk")), identity.Sum([]byte("index"))
	return &Block{
		AuthorityID: "authority-1", Name: Name{Hour: testHour, Shard: s, Resolution: res, Generation: gen}, Shards: 4, Fence: 18446744073709551615,
		TransactionID: "manifests/…@0123", PlanKey: layout.RollupPlan(testHour, s, gen), PlanSHA256: identity.Sum([]byte("plan")),
		Counts: Counts{Records: in.Records(), Published: in.Records(), Series: 1, Samples: 20},
		Objects: []Object{{
			Metric: "cpu.load é<&>\u2028", ChunkKey: layout.RollupChunk(res, testHour, "cpu.load é<&>\u2028", chunk, 1), ChunkBytes: 5, ChunkSHA256: chunk, FooterOffset: 3,
			IndexKey: layout.RollupIndex(testHour, index, 0), IndexBytes: 5, IndexSHA256: index, Series: 1, Samples: 20, MinTime: -5, MaxTime: 7,
		}},
		Supersedes: supersedes, CreatedAt: 1795237506000000007, WorkerID: "worker \"1\"\n", Inputs: in,
	}
}

func golden() map[string]Record {
	block := testSet(3, timegrid.OneMinute, 2, 1, batch("host/1", 0, 9), batch("host/1", 10, 19), batch("é", 5, 5))
	positions := testSet(3, timegrid.Raw, 1, 0, batch("host/1", 0, 9))
	positions.Journal = ReadThrough(journal.Positions{Head: 5, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: 4}, {Run: journal.RunID{2}, Next: 2, Ended: true}}})
	ended := testSet(3, timegrid.Raw, 1, 0, batch("host/1", 0, 9))
	ended.Journal = ReadThrough(journal.Positions{Head: 5})
	empty := testSet(0, timegrid.Raw, 1, 0)
	empty.Objects, empty.Counts = nil, Counts{}
	unrolled := testSet(3, timegrid.OneMinute, 1, 0, batch("host/1", 0, 9))
	unrolled.Objects, unrolled.Unrolled, unrolled.Counts.Series, unrolled.Counts.Samples = nil, true, 0, 0
	return map[string]Record{
		"unrolled": {Block: unrolled},
		"block":    {Block: block}, "positions": {Block: positions}, "ended": {Block: ended}, "empty": {Block: empty}, "removed": {Removed: block.Remove(3, 1795237506000000008, "worker 2")},
		"aborted": {Aborted: &Aborted{AuthorityID: "authority-1", Name: block.Name, Reason: "collected", AbortedAt: 9, WorkerID: "worker 2"}},
	}
}

func (r Record) key() string {
	switch {
	case r.Block != nil:
		return r.Block.Name.Key()
	case r.Aborted != nil:
		return r.Aborted.Name.Key()
	}
	return r.Removed.Name.Key()
}

func TestGoldenRecords(t *testing.T) {
	for name, r := range golden() {
		path := filepath.Join("testdata", name+".json")
		b := r.Marshal()
		if *update {
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, want) {
			t.Errorf("%s:\ngot  %s\nwant %s", name, b, want)
		}
		back, err := ParseRecord(r.key(), want)
		if err != nil || !bytes.Equal(back.Marshal(), want) {
			t.Errorf("%s does not come back: %v", name, err)
		}
	}
}

// Every change of a record's bytes makes it another record or none.
func TestParserRefuses(t *testing.T) {
	r := golden()["block"]
	key, b := r.key(), string(r.Marshal())
	refused := func(what, key, text string) {
		t.Helper()
		if _, err := ParseRecord(key, []byte(text)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
	other := r.Block.Name
	other.Generation++
	refused("of another key", other.Key(), b)
	refused("no key of a set", "manifests/v1/x.json", b)
	for what, edit := range map[string][2]string{
		"white space": {`{"schema"`, `{ "schema"`}, "a field more": {`"fence"`, `"x":1,"fence"`}, "a field twice": {`"shards":4,`, `"shards":4,"shards":4,`},
		"upper-case name": {`"fence"`, `"Fence"`}, "number as text": {`"shards":4`, `"shards":"4"`}, "fraction": {`"shards":4`, `"shards":4.0`},
		"needless escape": {`"collected"`, `"collecte\u0064"`}, "other schema": {`rollup_block.v1`, `rollup_blocks.v1`}, "shards": {`"shards":4`, `"shards":3`},
		"records": {`"records":21`, `"records":22`}, "published": {`"published":21`, `"published":20`}, "samples": {`"samples":20},`, `"samples":21},`},
		"digest of inputs": {`"inputs_sha256":"`, `"inputs_sha256":"0`}, "inputs": {`[[0,10,2]]`, `[[0,10,1],[10,10,1]]`}, "supersedes": {`"supersedes":1`, `"supersedes":2`},
		"footer": {`"footer_offset":3`, `"footer_offset":5`}, "chunk of another window": {`window=1m`, `window=5m`}, "plan of another generation": {`0000000002.json"`, `0000000001.json"`},
		"times": {`"max_time_unix_ns":7`, `"max_time_unix_ns":-6`}, "worker": {`"worker_id":"worker \"1\"\n"`, `"worker_id":""`}, "end": {`]}]}`, `]}]}}`},
		"authority": {`"authority-1"`, `"` + strings.Repeat("a", 129) + `"`},
	} {
		if strings.Contains(b, edit[0]) {
			refused(what, key, strings.Replace(b, edit[0], edit[1], 1))
		} else if what != "needless escape" {
			t.Errorf("%s: %q is not in the record", what, edit[0])
		}
	}
	positions := golden()["positions"]
	b = string(positions.Marshal())
	for what, edit := range map[string][2]string{
		"positions of nothing": {`"journal":{"head":5,"runs":[{"run":"01000000000000000000000000000000","next":4},{"run":"02000000000000000000000000000000","next":2,"ended":true}]}`, `"journal":{"head":0,"runs":[]}`},
		"no positions":         {`"journal":{"head":5`, `"journal":null,"x":{"head":5`}, "no runs": {`"runs":[{"run"`, `"runs":null,"x":[{"run"`},
		"runs out of order": {`"01000000000000000000000000000000"`, `"03000000000000000000000000000000"`}, "a run that did not end": {`"ended":true`, `"ended":false`},
	} {
		if !strings.Contains(b, edit[0]) {
			t.Errorf("%s: %q is not in the record", what, edit[0])
		}
		refused(what, positions.key(), strings.Replace(b, edit[0], edit[1], 1))
	}
	many := testSet(3, timegrid.Raw, 1, 0)
	many.Journal = manyRuns(MaxJournalRuns + 1)
	refused("too many runs", many.Name.Key(), string(many.Marshal()))
	removed := golden()["removed"]
	b = string(removed.Marshal())
	refused("superseded by itself", removed.key(), strings.Replace(b, `"superseded_by":3`, `"superseded_by":2`, 1))
	refused("a key that is no object", removed.key(), strings.Replace(b, `["rollup/v1/`, `["accepted/v1/`, 1))
	refused("a key of another hour", removed.key(), strings.Replace(b, `date=2026-10-24/hour=00/metric`, `date=2026-10-24/hour=01/metric`, 1))
	refused("too long", key, strings.Repeat(" ", MaxRecordBytes+1))
	for i := range b {
		refused("cut", removed.key(), b[:i])
	}
}

func manyRuns(n int) *journal.Positions {
	p := &journal.Positions{Head: 1, Runs: []journal.RunPosition{}}
	for i := range n {
		p.Runs = append(p.Runs, journal.RunPosition{Run: journal.RunID{byte(i >> 8), byte(i)}, Next: 1})
	}
	return p
}

// Positions in too many runs are left out as a whole: a run that they do not name counts as read to its end.
func TestReadThrough(t *testing.T) {
	for n, want := range map[int]bool{0: true, MaxJournalRuns: true, MaxJournalRuns + 1: false} {
		p := ReadThrough(*manyRuns(n))
		if (p != nil) != want || p != nil && len(p.Runs) != n {
			t.Errorf("%d runs: %v", n, p)
		}
		if err := ValidateReadThrough(p); err != nil {
			t.Errorf("%d runs: %v", n, err)
		}
	}
	if p := ReadThrough(journal.Positions{}); p != nil {
		t.Errorf("nothing was read: %v", p)
	}
	block := testSet(3, timegrid.Raw, 1, 0)
	block.Journal = manyRuns(MaxJournalRuns)
	if n := len(block.Marshal()); n > 80<<10 {
		t.Errorf("%d bytes", n)
	}
}

// A source of a compaction keeps its positions; the compaction has none, nor has what replaces a removed block.
func TestPositionsOfACompaction(t *testing.T) {
	block := golden()["positions"].Block
	into := Name{Hour: testHour, Shard: 3, Resolution: timegrid.Raw, Generation: 1, Span: 2}
	moved := block.Compacted(into, 5, "w")
	r, err := ParseRecord(block.Name.Key(), moved.Marshal())
	if err != nil || r.Block.Redirect == nil || !reflect.DeepEqual(r.Block.Journal, block.Journal) {
		t.Errorf("%+v, %v", r.Block, err)
	}
	c := &Block{AuthorityID: "a", Name: into, Shards: 4, TransactionID: "t", PlanKey: layout.BlockPlan(into), WorkerID: "w", Sources: []Name{block.Name}}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	c.Journal = block.Journal
	if err := c.Validate(); err == nil {
		t.Error("a compaction with positions")
	}
}

func FuzzParseRecord(f *testing.F) {
	for _, r := range golden() {
		f.Add(r.key(), r.Marshal())
	}
	f.Fuzz(func(t *testing.T, key string, b []byte) {
		r, err := ParseRecord(key, b)
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Fatal(err)
			}
			return
		}
		// Fields of a newer release are dropped; nothing else is.
		again, err := ParseRecord(key, r.Marshal())
		if err != nil || !bytes.Equal(again.Marshal(), r.Marshal()) || r.key() != key || len(r.Marshal()) > len(b) {
			t.Errorf("%q became %q, %v", b, r.Marshal(), err)
		}
		if r.Block != nil {
			if err := r.Block.Validate(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestUnrolledBlocks: only a rolled block of one hour can be without rows. One is never taken for a block that has none.
func TestUnrolledBlocks(t *testing.T) {
	good := golden()["unrolled"].Block
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	plain := *good
	plain.Unrolled = false
	if bytes.Equal(plain.Marshal(), good.Marshal()) {
		t.Error("the record does not say that its rows were not made")
	}
	for name, change := range map[string]func(*Block){
		"raw":          func(b *Block) { b.Name.Resolution = timegrid.Raw },
		"with objects": func(b *Block) { b.Objects = golden()["block"].Block.Objects; b.Counts.Series, b.Counts.Samples = 1, 20 },
		"in compaction": func(b *Block) {
			b.Redirect = &Redirect{Name: Name{Hour: testHour, Resolution: timegrid.OneMinute, Generation: 1, Span: 24}, WorkerID: "w"}
		},
		"counts of rows": func(b *Block) { b.Counts.Samples = 1 },
	} {
		b := *good
		change(&b)
		b.PlanKey = layout.BlockPlan(b.Name)
		if b.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
