package follow

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// fallbacks is how many snapshots of a shard are tried, the newest first.
const fallbacks = 3

// packsAtOnce bounds the packs in memory, each of at most 16 MiB.
const packsAtOnce = 8

// packs are the frames of live-state snapshots, many in one object. They save requests and decide nothing: only
// what the journal names is taken from them, by its hash, and what they lack is fetched by itself.
type packs struct {
	read     *prometheus.CounterVec
	restored *prometheus.CounterVec
}

func newPacks(reg prometheus.Registerer) *packs {
	p := promauto.With(reg)
	return &packs{
		read: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_snapshot_packs_total",
			Help: "Packs of live-state snapshots that were read, by outcome."}, []string{"outcome"}),
		restored: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_snapshot_batches_total",
			Help: "Batches that were looked for in live-state snapshots, by outcome."}, []string{"outcome"}),
	}
}

// fromPacks takes queued batches from the snapshots of their shards, and returns the others.
func (f *Follower) fromPacks(ctx context.Context, ws []*want) []*want {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PollTimeout)
	defer cancel()
	started := f.d.Now()
	all, err := snapshot.All(ctx, f.d.Store)
	if err != nil {
		f.d.Log.Warn("live-state snapshots can't be listed; frames are fetched one by one", "error", err)
		return ws
	}
	if len(all) == 0 {
		return ws
	}
	l := &looked{wants: make(map[identity.Batch]*want, len(ws))}
	for _, w := range ws {
		l.wants[w.batch.Identity] = w
	}
	var g errgroup.Group
	g.SetLimit(packsAtOnce)
	// The group bounds shards, the slots bound packs of all shards together: memory is what packs take.
	slots := make(chan struct{}, packsAtOnce)
	for s, numbers := range all {
		g.Go(func() error {
			// A shard whose snapshots are damaged must not keep those of others from being read, so it returns no
			// error.
			f.fromShard(ctx, l, s, numbers, slots)
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	var rest []*want
	for _, w := range ws {
		if l.wants[w.batch.Identity] != nil {
			rest = append(rest, w)
		}
	}
	f.packs.restored.WithLabelValues("inserted").Add(float64(len(ws) - len(rest)))
	f.packs.restored.WithLabelValues("absent").Add(float64(len(rest)))
	f.d.Log.Info("took frames from live-state snapshots", "shards", len(all), "batches", len(ws)-len(rest), "others", len(rest), "took", f.d.Now().Sub(started))
	return rest
}

// looked are the batches that are looked for.
type looked struct {
	mu    sync.Mutex
	wants map[identity.Batch]*want
}

// anyOf reports whether one of the batches is in the pack.
func (l *looked) anyOf(ref snapshot.Ref) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range ref.Inputs.All() {
		if l.wants[id] != nil {
			return true
		}
	}
	return false
}

func (l *looked) get(id identity.Batch) *want {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wants[id]
}

func (l *looked) drop(id identity.Batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.wants, id)
}

// fromShard reads the packs of the newest snapshot that can be read. If one of its packs can't, it continues
// with older snapshots, which may have other packs with the same batches.
func (f *Follower) fromShard(ctx context.Context, l *looked, s shard.ID, numbers []uint64, slots chan struct{}) {
	for _, n := range numbers[:min(len(numbers), fallbacks)] {
		snap, err := snapshot.Read(ctx, f.d.Store, s, n)
		if err != nil {
			f.d.Log.Warn("live-state snapshot can't be read; an older one may do", "shard", s, "number", n, "error", err)
			continue
		}
		var g errgroup.Group
		for _, ref := range snap.Packs {
			if !l.anyOf(ref) {
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				_ = g.Wait() // the store fails as well
				return
			}
			g.Go(func() error {
				defer func() { <-slots }()
				return f.fromPack(ctx, l, snap, ref)
			})
		}
		if err = g.Wait(); err == nil || ctx.Err() != nil {
			return
		}
		f.d.Log.Warn("live-state snapshot is not whole; an older one may do", "shard", s, "number", n, "error", err)
	}
}

// fromPack takes the batches of a pack that are looked for and whose frames are intact; the error says that some
// are not.
func (f *Follower) fromPack(ctx context.Context, l *looked, snap *snapshot.Snapshot, ref snapshot.Ref) error {
	p, err := snapshot.ReadPack(ctx, f.d.Store, snap, ref)
	if err != nil {
		f.packs.read.WithLabelValues("unreadable").Inc()
		return err
	}
	for i, e := range p.Entries {
		w := l.get(e.Identity)
		// The journal says which frame was accepted. A pack with another one is not believed.
		if w == nil || e.FrameSHA256 != w.batch.FrameSHA256 {
			continue
		}
		raw, rerr := p.Frame(i)
		if rerr == nil {
			rerr = f.show(w.batch, raw)
		}
		if rerr != nil {
			err = rerr
			continue
		}
		l.drop(e.Identity)
		f.finish(w)
	}
	if err != nil {
		f.packs.read.WithLabelValues("damaged").Inc()
		return err
	}
	f.packs.read.WithLabelValues("ok").Inc()
	return nil
}
