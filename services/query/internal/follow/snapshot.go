package follow

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// fallbacks is how many snapshots of a shard are tried, the newest first.
const fallbacks = 3

// packsAtOnce bounds the packs in memory, each of at most 16 MiB.
const packsAtOnce = 8

// restorer takes batches from live-state snapshots before the first audit. Snapshots save requests and prove
// nothing: the audit finds what they lack, and also reveals a batch that no manifest accepts.
type restorer struct {
	packs    *prometheus.CounterVec
	restored *prometheus.CounterVec
	unproved prometheus.Gauge

	mu sync.Mutex
	// taken batches whose manifests no audit has listed yet; nil after the first full audit.
	taken map[identity.Batch]struct{}
}

func newRestorer(reg prometheus.Registerer) *restorer {
	p := promauto.With(reg)
	return &restorer{
		packs: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_snapshot_packs_total",
			Help: "Packs of live-state snapshots that were read, by outcome."}, []string{"outcome"}),
		restored: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_snapshot_batches_total",
			Help: "Batches of live-state snapshots, by outcome."}, []string{"outcome"}),
		unproved: p.NewGauge(prometheus.GaugeOpts{Name: "lightmetrics_query_snapshot_unaccepted_batches",
			Help: "Batches that a live-state snapshot had and that no manifest accepts; anything but 0 is an error of the worker that wrote it."}),
		taken: map[identity.Batch]struct{}{},
	}
}

// Restore reads the newest readable snapshot of every shard. What can't be read an audit finds; the error says
// that the snapshots could not even be listed.
func (f *Follower) Restore(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.AuditTimeout)
	defer cancel()
	started := f.d.Now()
	all, err := snapshot.All(ctx, f.d.Store)
	if err != nil {
		f.d.Log.Warn("no start from live-state snapshots yet", "error", err)
		return err
	}
	var g errgroup.Group
	g.SetLimit(packsAtOnce)
	// The group bounds shards, the slots bound packs of all shards together: memory is what packs take.
	slots := make(chan struct{}, packsAtOnce)
	var batches atomic.Int64
	for s, numbers := range all {
		g.Go(func() error {
			// A shard whose snapshots are damaged must not keep the others from being restored, so it returns no
			// error.
			batches.Add(int64(f.restoreShard(ctx, s, numbers, slots)))
			return nil
		})
	}
	_ = g.Wait() // the functions return no errors
	if len(all) > 0 {
		f.d.Log.Info("started from live-state snapshots", "shards", len(all), "batches", batches.Load(), "took", f.d.Now().Sub(started))
	}
	return nil
}

// restoreShard takes the packs of the newest snapshot that can be read. If one of its packs can't, it continues
// with older snapshots, which may have other packs with the same batches.
func (f *Follower) restoreShard(ctx context.Context, s shard.ID, numbers []uint64, slots chan struct{}) (batches int) {
	for _, n := range numbers[:min(len(numbers), fallbacks)] {
		snap, err := snapshot.Read(ctx, f.d.Store, s, n)
		if err != nil {
			f.d.Log.Warn("live-state snapshot can't be read; an older one may do", "shard", s, "number", n, "error", err)
			continue
		}
		var g errgroup.Group
		var taken atomic.Int64
		for _, ref := range snap.Packs {
			// An earlier attempt had all of its batches; reading it again would cost up to 16 MiB.
			if f.knows(ref) {
				continue
			}
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return batches
			}
			g.Go(func() error {
				defer func() { <-slots }()
				n, err := f.restorePack(ctx, snap, ref)
				taken.Add(int64(n))
				return err
			})
		}
		err = g.Wait()
		batches += int(taken.Load())
		if err == nil || ctx.Err() != nil {
			return batches
		}
		f.d.Log.Warn("live-state snapshot is not whole; an older one may do, an audit finds the rest", "shard", s, "number", n, "error", err)
	}
	return batches
}

// knows reports that the pack has no batch that is not known.
func (f *Follower) knows(ref snapshot.Ref) bool {
	for id := range ref.Inputs.All() {
		if !f.has(id) {
			return false
		}
	}
	return true
}

func (f *Follower) has(id identity.Batch) bool {
	if f.d.Live.Known(id) {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.ledgers[id.BootOf()]
	return l != nil && l.Has(id.SeqStart, id.SeqEnd)
}

// restorePack takes the batches of a pack whose frames are intact; the error says that some are not.
func (f *Follower) restorePack(ctx context.Context, snap *snapshot.Snapshot, ref snapshot.Ref) (taken int, err error) {
	p, err := snapshot.ReadPack(ctx, f.d.Store, snap, ref)
	if err != nil {
		f.restore.packs.WithLabelValues("unreadable").Inc()
		return 0, err
	}
	for i, e := range p.Entries {
		if err := ctx.Err(); err != nil {
			return taken, err
		}
		// Overlapping packs of an older snapshot repeat batches.
		if f.has(e.Identity) {
			f.restore.restored.WithLabelValues("known").Inc()
			continue
		}
		raw, rerr := p.Frame(i)
		if rerr == nil {
			rerr = f.restoreBatch(e, raw)
		}
		if rerr != nil {
			f.restore.restored.WithLabelValues("refused").Inc()
			err = errors.Join(err, rerr)
			continue
		}
		taken++
	}
	if err != nil {
		f.restore.packs.WithLabelValues("damaged").Inc()
	} else {
		f.restore.packs.WithLabelValues("ok").Inc()
	}
	return taken, err
}

func (f *Follower) restoreBatch(e accepted.Batch, raw []byte) error {
	id := e.Identity
	f.firsts.note(id, e.MinTime)
	// As in takeNow: what lies before the window and is in a block is only counted.
	if e.MaxTime < f.d.Now().Add(-f.d.History).UnixNano() && (f.d.Needed == nil || !f.d.Needed(id, e.MinTime, e.MaxTime)) {
		f.restore.take(id)
		f.add(id, e.AcceptedAt)
		f.restore.restored.WithLabelValues("expired").Inc()
		return nil
	}
	if err := f.show(e, raw); err != nil {
		return err
	}
	f.restore.take(id)
	f.add(id, e.AcceptedAt)
	f.restore.restored.WithLabelValues("inserted").Inc()
	return nil
}

func (r *restorer) take(id identity.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken != nil {
		// Nothing is noted after the first full audit: every later batch comes from a manifest.
		r.taken[id] = struct{}{}
	}
}

// prove records that an audit has listed the batch's manifest.
func (r *restorer) prove(id identity.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.taken, id)
}

// audited runs after a full audit that began after the restore: what the audit did not list was never accepted.
func (f *Follower) audited() {
	r := f.restore
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.taken {
		// The samples stay in memory until they expire. A worker that writes such a snapshot is defective, and an
		// operator has to know.
		f.d.Log.Error("a live-state snapshot held a batch that no manifest accepts", "batch", id)
	}
	if len(r.taken) > 0 {
		r.unproved.Set(float64(len(r.taken)))
	}
	r.taken = nil
}
