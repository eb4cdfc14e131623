package snapshots

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	workmem "lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// Which packs are read for which batches: those that save requests, and none for batches whose frames retention may have removed.
func TestPacksThatAreWorthIt(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	s := mem.New(func() time.Time { return now })
	entry := func(agent string, n uint64) accepted.Batch {
		raw := fmt.Appendf(nil, "%s %03d", agent, n)
		d := identity.Sum(raw)
		if _, err := s.Put(t.Context(), layout.Blob(d, 0), raw, objstore.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		return accepted.Batch{Identity: identity.Batch{Agent: agent, Boot: "b", SeqStart: 10 * n, SeqEnd: 10*n + 9}, FrameSHA256: d, FrameBytes: uint64(len(raw)),
			RawBlobKey: layout.Blob(d, 0), AcceptedAt: now.UnixNano(), MinTime: now.UnixNano(), MaxTime: now.UnixNano()}
	}
	table := workmem.New(func() time.Time { return now }, workmem.Options{})
	m := NewMaker(Config{
		Settings: Settings{Interval: time.Nanosecond, Window: 96 * time.Hour}, Store: s, Table: table, Queue: table, Now: func() time.Time { return now },
		Frames: &frames.Reader{Store: s, MaxFrame: 100, AtOnce: 2}, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		AuthorityID: "a", Shards: 1, Process: "p", MaxPending: 1000, Hold: time.Minute, TimeLimit: time.Minute,
	})
	var in []accepted.Batch
	for n := range uint64(100) {
		in = append(in, entry("x", n), entry("y", 2*n)) // y's are no run
	}
	l, err := m.Loop(ownership.Grant{Shard: 0, Fence: 1})
	if err != nil {
		t.Fatal(err)
	}
	if l.Offer(in); m.Packs(in) != nil {
		t.Error("packs before there is a snapshot")
	}
	l.begin()
	for l.chain.Newest() == nil || l.chain.Newest().Batches() < uint64(len(in)) {
		if _, err := l.step(t.Context()); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	pack := l.chain.Newest().Packs[0]
	if n := len(l.chain.Newest().Packs); n != 1 {
		t.Fatalf("%d packs", n)
	}
	// give counts the batches that packs are read for, whose frames it compares.
	give := func(of []accepted.Batch) (n int) {
		for _, p := range m.Packs(of) {
			raws, err := p.Read(t.Context())
			if err != nil || len(raws) != len(p.Entries) || p.Bytes != pack.Bytes {
				t.Fatalf("%d frames of %d entries: %v", len(raws), len(p.Entries), err)
			}
			for k, i := range p.Entries {
				if identity.Sum(raws[k]) != of[i].FrameSHA256 {
					t.Errorf("%s has another frame", of[i].Identity)
				}
			}
			n += len(p.Entries)
		}
		return n
	}
	others := []accepted.Batch{entry("x", 100), entry("z", 1), entry("y", 1), entry("x", 3)}
	others[3].Identity.SeqStart, others[3].Identity.SeqEnd = 15, 24 // overlaps two that are there
	if got := give(append(slices.Clone(others), in...)); got != len(in) {
		t.Errorf("%d of %d batches are read from the pack", got, len(in))
	}
	if got := give(others); got != 0 {
		t.Errorf("%d batches are in no pack and are read from one", got)
	}
	if got := give(in[:25]); got != 25 {
		t.Errorf("%d of 25 batches, which are an eighth of the pack", got)
	}
	if got := give(in[:24]); got != 0 {
		t.Errorf("%d of 24 batches, which are less than an eighth of the pack", got)
	}
	old := slices.Clone(in)
	for i := range old {
		old[i].MaxTime = now.Add(-maxAge).UnixNano() - int64(i%2)
	}
	if got := give(old); got != len(in)/2 {
		t.Errorf("%d batches of %d, of which half are so old that retention may have removed them", got, len(in))
	}
	if l.end(); m.Packs(in) != nil {
		t.Error("packs of a shard that is not this worker's")
	}
	l.begin()
	next := &Loop{m: m, grant: l.grant, chain: l.chain}
	if next.begin(); m.running[0] != next {
		t.Error("the next grant's snapshots are not read")
	}
	if l.end(); m.running[0] != next {
		t.Error("the end of a grant ends the next one")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if p := m.Packs(nil); p != nil {
		t.Error("packs of nothing")
	}
	few := *l.chain.Newest()
	few.Packs = slices.Clone(few.Packs)
	few.Packs[0].Batches = 1
	if got := packsOf(&m.cfg, &few, in[:1]); got != nil {
		t.Error("a pack is read for one batch")
	}
	if _, err := m.Packs(in)[0].Read(ctx); err == nil {
		t.Error("a read that ended gives frames")
	}
}
