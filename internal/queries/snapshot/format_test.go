package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var update = flag.Bool("update", false, "write the golden files")

// sample is a pack of three batches, and the snapshot that names it.
func sample(t testing.TB) (pack []byte, batches []Batch, snap Snapshot) {
	w := newWorld(t)
	for _, e := range w.accept(3) {
		batches = append(batches, Batch{e, w.frames[e.FrameSHA256]})
	}
	pack, err := EncodePack(mine, shards, batches)
	w.must(err)
	p, err := DecodePack(pack)
	w.must(err)
	ref, err := refOf(5, pack, p)
	w.must(err)
	return pack, batches, Snapshot{
		AuthorityID: "golden", Shard: mine, Shards: shards, Number: 7, Fence: 3, CreatedAt: 1_800_000_000_000_000_000, Packs: []Ref{ref},
	}
}

func TestGolden(t *testing.T) {
	pack, _, snap := sample(t)
	js, err := snap.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string][]byte{"pack.lmpack": pack, "snapshot.json": js} {
		path := filepath.Join("testdata", name)
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs:\n%q\nwant\n%q", name, got, want)
		}
	}
}

func TestPacksRoundTrip(t *testing.T) {
	pack, batches, _ := sample(t)
	p, err := DecodePack(pack)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range batches {
		raw, err := p.Frame(i)
		if err != nil || !bytes.Equal(raw, b.Raw) || p.Entries[i] != b.Batch {
			t.Errorf("batch %d is %+v %q, %v", i, p.Entries[i], raw, err)
		}
	}
	slices.Reverse(batches)
	again, err := EncodePack(mine, shards, batches)
	if err != nil || !bytes.Equal(again, pack) {
		t.Errorf("another order gives other bytes, %v", err)
	}
}

// rewrite changes a pack's header and sets its checksum right.
func rewrite(pack []byte, old, with string) []byte {
	n := binary.LittleEndian.Uint32(pack[8:])
	js := []byte(strings.Replace(string(pack[prefixBytes:prefixBytes+n]), old, with, 1))
	out := slices.Clone(pack[:8])
	out = binary.LittleEndian.AppendUint32(out, uint32(len(js)))
	out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(js, castagnoli))
	return append(append(out, js...), pack[prefixBytes+n:]...)
}

func TestBadPacksAreRefused(t *testing.T) {
	pack, batches, _ := sample(t)
	flip := func(i int) []byte {
		b := slices.Clone(pack)
		b[i] ^= 1
		return b
	}
	long := slices.Clone(pack)
	binary.LittleEndian.PutUint32(long[8:], 1<<31)
	for name, b := range map[string][]byte{
		"empty": nil, "magic": flip(1), "version": flip(7), "length": flip(8), "checksum": flip(12), "header": flip(20), "long header": long,
		"cut": pack[:len(pack)-1], "tail": append(slices.Clone(pack), 0), "short": pack[:10],
		"space": rewrite(pack, ":", ": "), "schema": rewrite(pack, "pack.v1", "pact.v1"), "unknown field": rewrite(pack, `{"schema"`, `{"x":1,"schema"`),
		"shard": rewrite(pack, `"shard":2`, `"shard":3`), "shards": rewrite(pack, `"shards":4`, `"shards":0`),
		"order":    rewrite(pack, `"accepted_at_unix_ns":17`, `"accepted_at_unix_ns":97`),
		"identity": rewrite(pack, `"seq_start":0`, `"seq_start":10`),
	} {
		if _, err := DecodePack(b); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p, err := DecodePack(flip(len(pack) - 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Frame(0); err != nil {
		t.Errorf("the frame beside the damaged one: %v", err)
	}
	if _, err := p.Frame(2); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("the damaged frame: %v", err)
	}

	other := slices.Clone(batches)
	other[1].Raw = append(slices.Clone(other[1].Raw[:len(other[1].Raw)-1]), 'x')
	for name, bs := range map[string][]Batch{
		"none": {}, "wrong frame": other, "twice": {batches[0], batches[0]}, "too many": make([]Batch, MaxPackBatches+1),
	} {
		if _, err := EncodePack(mine, shards, bs); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	big := make([]byte, MaxPackBytes)
	if _, err := EncodePack(mine, shards, []Batch{batchOf(big)}); err == nil {
		t.Error("a frame of 16 MiB is packed")
	}
}

func batchOf(raw []byte) Batch {
	return Batch{accepted.Batch{
		Identity: identity.Batch{Agent: agents[0], Boot: "b", SeqEnd: 9}, FrameSHA256: sum(raw), FrameBytes: uint64(len(raw)), AcceptedAt: 1, MaxTime: 1,
	}, raw}
}

func TestBadSnapshotsAreRefused(t *testing.T) {
	_, _, snap := sample(t)
	js, err := snap.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(js)
	if err != nil || got.Packs[0].Inputs.Batches() != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	r := func(old, with string) string { return strings.Replace(string(js), old, with, 1) }
	for name, b := range map[string]string{
		"empty": "", "cut": string(js[:len(js)-1]), "two": string(js) + string(js), "space": r(":", ": "), "schema": r("snapshot.v1", "snapshots.v1"),
		"unknown field": r(`"shard":`, `"x":1,"shard":`), "authority": r(`"golden"`, `""`), "number 0": r(`"number":7`, `"number":0`),
		"pack of a later number": r(`"number":7`, `"number":4`), "no packs": string(js[:strings.Index(string(js), `"packs"`)]) + `"packs":null}`,
		"batches": r(`"batches":3`, `"batches":2`), "inputs": r(`[0,10,1]`, `[0,0,1]`), "bytes": r(`"bytes":1`, `"bytes":9999999`),
		"shards": r(`"shards":4`, `"shards":2`), "created": r(`"created_at_unix_ns":1`, `"created_at_unix_ns":-1`),
	} {
		if b == string(js) {
			t.Fatalf("%s changes nothing", name)
		}
		if _, err := Parse([]byte(b)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	snap.Packs = append(snap.Packs, snap.Packs[0])
	if _, err := snap.Marshal(); err == nil {
		t.Error("a pack stands twice")
	}
	snap.Packs, snap.Shard = nil, shard.ID(9)
	if _, err := snap.Marshal(); err == nil {
		t.Error("shard 9 of 4")
	}
}

func FuzzDecodePack(f *testing.F) {
	pack, _, _ := sample(f)
	f.Add(pack)
	f.Add(pack[:40])
	f.Add(rewrite(pack, `"seq_start":0`, `"seq_start":5`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodePack(b)
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) {
				t.Errorf("%v", err)
			}
			return
		}
		var batches []Batch
		for i, e := range p.Entries {
			raw, err := p.Frame(i)
			if err != nil {
				return
			}
			batches = append(batches, Batch{e, raw})
		}
		if again, err := EncodePack(p.Shard, p.Shards, batches); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%q is read, and written as %q, %v", b, again, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	_, _, snap := sample(f)
	js, err := snap.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(js)
	f.Add([]byte(`{"schema":"lightmetrics.live_snapshot.v1","packs":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err != nil {
			if !errors.Is(err, record.ErrCorrupt) && !errors.Is(err, record.ErrNewerVersion) {
				t.Errorf("%v", err)
			}
			return
		}
		// Fields of a newer release are dropped; nothing else is.
		again, err := s.Marshal()
		if err != nil || len(again) > len(b) {
			t.Errorf("%q is read, and written as %q, %v", b, again, err)
			return
		}
		if s, err = Parse(again); err != nil {
			t.Errorf("%q: %v", again, err)
		} else if third, err := s.Marshal(); err != nil || !bytes.Equal(third, again) {
			t.Errorf("%q is read, and written as %q, %v", again, third, err)
		}
	})
}
