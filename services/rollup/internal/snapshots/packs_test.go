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
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// snapped is a worker's shard whose snapshot has one pack with all of in.
type snapped struct {
	*testing.T
	m     *Maker
	l     *Loop
	store objstore.Store
	now   time.Time
	in    []accepted.Batch
}

func newSnapped(t *testing.T) *snapped {
	w := &snapped{T: t, now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return w.now }
	w.store = mem.New(clock)
	table := workmem.New(clock, workmem.Options{})
	w.m = NewMaker(Config{
		Settings: Settings{Interval: time.Nanosecond, Window: 96 * time.Hour}, Store: w.store, Table: table, Now: clock,
		Frames: &frames.Reader{Store: w.store, MaxFrame: 100, AtOnce: 2}, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		AuthorityID: "a", Shards: 1, Process: "p", MaxPending: 1000, Hold: time.Minute, TimeLimit: time.Minute,
	})
	for n := range uint64(100) {
		w.in = append(w.in, w.accept("x", n), w.accept("y", 2*n)) // y's are no run
	}
	var err error
	if w.l, err = w.m.Loop(ownership.Grant{Shard: 0, Fence: 1}); err != nil {
		t.Fatal(err)
	}
	w.l.begin()
	if w.l.Offer(w.in); w.m.Packs(t.Context(), w.in) != nil {
		t.Error("packs before there is a snapshot")
	}
	for w.newest() == nil || w.newest().Batches() < uint64(len(w.in)) {
		if _, err := w.l.step(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(time.Second)
	}
	if n := len(w.newest().Packs); n != 1 {
		t.Fatalf("%d packs", n)
	}
	return w
}

func (w *snapped) newest() *snapshot.Snapshot { return w.l.chain.Newest() }

// accept stores a frame of ten records and gives its entry.
func (w *snapped) accept(agent string, n uint64) accepted.Batch {
	w.Helper()
	raw := fmt.Appendf(nil, "%s %03d", agent, n)
	d := identity.Sum(raw)
	if _, err := w.store.Put(w.Context(), layout.Blob(d, 0), raw, objstore.PutOptions{}); err != nil {
		w.Fatal(err)
	}
	at := w.now.UnixNano()
	return accepted.Batch{Identity: identity.Batch{Agent: agent, Boot: "b", SeqStart: 10 * n, SeqEnd: 10*n + 9}, FrameSHA256: d, FrameBytes: uint64(len(raw)),
		RawBlobKey: layout.Blob(d, 0), AcceptedAt: at, MinTime: at, MaxTime: at}
}

// packed counts those of the batches that packs are read for, and compares their frames.
func (w *snapped) packed(of []accepted.Batch) (n int) {
	w.Helper()
	for _, p := range w.m.Packs(w.Context(), of) {
		raws, err := p.Read(w.Context())
		if err != nil || len(raws) != len(p.Entries) || p.Bytes != w.newest().Packs[0].Bytes {
			w.Fatalf("%d frames of %d entries: %v", len(raws), len(p.Entries), err)
		}
		for k, i := range p.Entries {
			if identity.Sum(raws[k]) != of[i].FrameSHA256 {
				w.Errorf("%s has another frame", of[i].Identity)
			}
		}
		n += len(p.Entries)
	}
	return n
}

// A pack is read for the batches that it has, and for no other.
func TestPacksOfBatches(t *testing.T) {
	w := newSnapped(t)
	others := []accepted.Batch{w.accept("x", 100), w.accept("z", 1), w.accept("y", 1), w.accept("x", 3)}
	others[3].Identity.SeqStart, others[3].Identity.SeqEnd = 15, 24 // overlaps two that are there
	if got := w.packed(append(slices.Clone(others), w.in...)); got != len(w.in) {
		t.Errorf("%d of %d batches are read from the pack", got, len(w.in))
	}
	if got := w.packed(others); got != 0 {
		t.Errorf("%d batches are in no pack and are read from one", got)
	}
	if p := w.m.Packs(t.Context(), nil); p != nil {
		t.Error("packs of nothing")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.m.Packs(t.Context(), w.in)[0].Read(ctx); err == nil {
		t.Error("a read that ended gives frames")
	}
}

// Packs are read where that saves requests, and not the bytes of a whole pack for a few frames.
func TestPacksThatAreWorthIt(t *testing.T) {
	w := newSnapped(t)
	if got := w.packed(w.in[:25]); got != 25 {
		t.Errorf("%d of 25 batches, which are an eighth of the pack", got)
	}
	if got := w.packed(w.in[:24]); got != 0 {
		t.Errorf("%d of 24 batches, which are less than an eighth of the pack", got)
	}
	small := *w.newest()
	small.Packs = slices.Clone(small.Packs)
	small.Packs[0].Batches = 1
	if got := packsOf(&w.m.cfg, &small, w.in[:1]); got != nil {
		t.Error("a pack is read for one batch")
	}
}

// Retention may have removed frames of old batches, which no pack brings back.
func TestPacksOfOldBatches(t *testing.T) {
	w := newSnapped(t)
	old := slices.Clone(w.in)
	for i := range old {
		old[i].MaxTime = w.now.Add(-maxAge).UnixNano() - int64(i%2)
	}
	if got := w.packed(old); got != len(old)/2 {
		t.Errorf("%d batches of %d, of which half are so old that retention may have removed them", got, len(old))
	}
}

// Packs are those of the grant under which the shard is this worker's now.
func TestPacksOfAGrant(t *testing.T) {
	w := newSnapped(t)
	if w.l.end(); w.m.Packs(t.Context(), w.in) != nil {
		t.Error("packs of a shard that is not this worker's")
	}
	w.l.begin()
	next := &Loop{m: w.m, grant: w.l.grant, chain: w.l.chain}
	if next.begin(); w.m.running[0] != next {
		t.Error("the next grant's snapshots are not read")
	}
	if w.l.end(); w.m.running[0] != next {
		t.Error("the end of a grant ends the next one")
	}
}

// An owner that begins reads packs of the owner before it, before it has made a snapshot of its own or looked for one.
func TestPacksBeforeTheFirstStep(t *testing.T) {
	w := newSnapped(t)
	w.l.end()
	next, err := w.m.Loop(ownership.Grant{Shard: 0, Fence: 2})
	if err != nil {
		t.Fatal(err)
	}
	next.begin()
	if got := w.packed(w.in); got != len(w.in) {
		t.Errorf("%d batches of %d are read from packs", got, len(w.in))
	}
}
