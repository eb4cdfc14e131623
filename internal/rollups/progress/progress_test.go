package progress

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const shards = 4

// agentOf finds an agent of a shard.
func agentOf(id shard.ID) string {
	for i := 0; ; i++ {
		if a := fmt.Sprintf("agent-%d", i); shard.Of(a, shards) == id {
			return a
		}
	}
}

func batch(id shard.ID, seq uint64) accepted.Batch {
	d := identity.Sum([]byte{byte(seq)})
	return accepted.Batch{Identity: identity.Batch{Agent: agentOf(id), Boot: "b", SeqStart: seq, SeqEnd: seq}, FrameSHA256: d, FrameBytes: 1, RawBlobKey: layout.Blob(d, 0)}
}

func example(id shard.ID) Progress {
	return Progress{AuthorityID: "a", Shard: id, Shards: shards, Fence: 7, Pending: []accepted.Batch{batch(id, 1), batch(id, 2)},
		Positions: journal.Positions{Head: 5, Runs: []journal.RunPosition{{Run: journal.RunID{1}, Next: 4}, {Run: journal.RunID{2}, Next: 2, Ended: true}}}}
}

func TestRecord(t *testing.T) {
	b, err := example(3).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := p.Marshal(); err != nil || !bytes.Equal(again, b) {
		t.Fatalf("%s, %v", again, err)
	}
	for name, spoil := range map[string]func(*Progress){
		"no authority":    func(p *Progress) { p.AuthorityID = "" },
		"shard":           func(p *Progress) { p.Shard = shards },
		"no shards":       func(p *Progress) { p.Shards = 0 },
		"another's batch": func(p *Progress) { p.Pending = []accepted.Batch{batch(2, 1)} },
		"order":           func(p *Progress) { p.Pending[0], p.Pending[1] = p.Pending[1], p.Pending[0] },
		"twice":           func(p *Progress) { p.Pending[1] = p.Pending[0] },
		"invalid batch":   func(p *Progress) { p.Pending[0].FrameBytes = 0 },
		"order of runs":   func(p *Progress) { p.Positions.Runs[1].Run = journal.RunID{1} },
		"too many":        func(p *Progress) { p.Pending = make([]accepted.Batch, MaxPending+1) },
	} {
		p := example(3)
		spoil(&p)
		if _, err := p.Marshal(); err == nil {
			t.Errorf("%s: written", name)
		}
		if _, err := Parse(Kind.Marshal(p)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: read, %v", name, err)
		}
	}
}

// Whoever writes on an older record than the one that is there does not replace it.
func TestWriteIsConditional(t *testing.T) {
	s, ctx := mem.New(nil), t.Context()
	if _, _, err := Read(ctx, s, "a", 3, shards); !errors.Is(err, objstore.ErrNotFound) {
		t.Fatal(err)
	}
	p := example(3)
	first, err := p.Write(ctx, s, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Write(ctx, s, ""); !errors.Is(err, objstore.ErrExists) {
		t.Fatal(err)
	}
	p.Fence++
	second, err := p.Write(ctx, s, first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := example(3).Write(ctx, s, first); !errors.Is(err, objstore.ErrPreconditionFailed) {
		t.Fatal(err)
	}
	got, etag, err := Read(ctx, s, "a", 3, shards)
	if err != nil || etag != second || got.Fence != p.Fence || len(got.Pending) != 2 {
		t.Fatal(got, etag, err)
	}
	for _, other := range []func() error{
		func() error { _, _, err := Read(ctx, s, "b", 3, shards); return err },
		func() error { _, _, err := Read(ctx, s, "a", 3, shards+1); return err },
	} {
		if err := other(); !errors.Is(err, record.ErrCorrupt) {
			t.Error(err)
		}
	}
}

// A query node reads the records of all shards; one without a record is at nothing.
func TestReadAll(t *testing.T) {
	s, ctx := mem.New(nil), t.Context()
	for _, id := range []shard.ID{0, 1, 3} {
		p := example(id)
		p.Positions.Head += uint64(id)
		if _, err := p.Write(ctx, s, ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Put(ctx, layout.RollupProgressPrefix+"x", nil, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := ReadAll(ctx, s, "a", shards)
	if err != nil || len(all) != shards || len(all[1].Pending) != 2 || all[1].Positions.Head != 6 {
		t.Fatal(all, err)
	}
	if at := Earliest(all); !at.IsZero() {
		t.Errorf("with a shard that has no record: %v", at)
	}
	if at := Earliest([]Progress{all[0], all[1], all[3]}); at.Head != 5 || len(at.Runs) != 2 {
		t.Errorf("%v", at)
	}
	if _, err := s.Put(ctx, layout.RollupProgress(2), []byte("{}"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadAll(ctx, s, "a", shards); !errors.Is(err, record.ErrCorrupt) {
		t.Error(err)
	}
}
