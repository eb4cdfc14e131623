package rollup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// SnapshotConfig is the live-state snapshots that query nodes start from.
type SnapshotConfig struct {
	Interval time.Duration `koanf:"interval" help:"time between two live-state snapshots of a shard; 0 makes none"`
	Window   time.Duration `koanf:"window" help:"how far back snapshots hold frames, by sample time: history.window of the query nodes" needs:"interval"`
}

// DefaultSnapshotConfig fits the defaults of query nodes.
func DefaultSnapshotConfig() SnapshotConfig {
	return SnapshotConfig{Interval: time.Minute, Window: snapshot.DefaultWindow}
}

// Validate checks ranges.
func (c SnapshotConfig) Validate() error {
	if c.Interval < 0 || c.Window <= 0 {
		return errors.New("snapshot: interval must not be negative, window must be greater than 0")
	}
	return nil
}

// snapshotJobs is how many shards of a worker are at their snapshots at once: each may
// take the memory of a few packs.
const snapshotJobs = 2

// snapshotMargin is kept beyond the window: query nodes look at manifests of so much
// before their history, for clocks that differ, and a snapshot has its age.
const snapshotMargin = 20 * time.Minute

// snapshotter is what the chains of a worker share.
type snapshotter struct {
	slots     *semaphore.Weighted
	committed prometheus.Counter
	packs     *prometheus.CounterVec // kind
	bytes     prometheus.Counter
	skipped   prometheus.Counter
	deleted   *prometheus.CounterVec // what
	failures  prometheus.Counter
	pending   *prometheus.GaugeVec // shard
	number    *prometheus.GaugeVec // shard
}

func newSnapshotter(reg prometheus.Registerer) *snapshotter {
	const p = "lightmetrics_rollup_snapshot"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: p + name, Help: help})
	}
	s := &snapshotter{
		slots:     semaphore.NewWeighted(snapshotJobs),
		committed: counter("s_committed_total", "Live-state snapshots that this worker committed."),
		packs:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "_packs_total", Help: "Packs of frames that were written: new, merged."}, []string{"kind"}),
		bytes:     counter("_pack_bytes_total", "Bytes of packs that were written."),
		skipped:   counter("_batches_skipped_total", "Batches that snapshots go without, as their frames can't be read or are too long."),
		deleted:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "_deleted_total", Help: "Old objects that were deleted: snapshot, pack."}, []string{"what"}),
		failures:  counter("_failures_total", "Snapshots that failed and were tried again, and objects of former ones that can't be read."),
		pending:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: p + "_pending_batches", Help: "Batches that no snapshot holds yet, by shard."}, []string{"shard"}),
		number:    prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: p + "_number", Help: "Number of the newest snapshot, by shard."}, []string{"shard"}),
	}
	reg.MustRegister(s.committed, s.packs, s.bytes, s.skipped, s.deleted, s.failures, s.pending, s.number)
	return s
}

// snapshots is the loop of one owned shard beside its owner, so that a long job holds
// no snapshot up. A nil one does nothing.
type snapshots struct {
	s      *Service
	grant  Grant
	chain  *snapshot.Chain
	reader *intake.Reader
}

// startSnapshots makes snapshots of the granted shard until stop is called, which waits.
func (s *Service) startSnapshots(ctx context.Context, g Grant) (p *snapshots, stop func()) {
	if s.cfg.Snapshot.Interval == 0 {
		return nil, func() {}
	}
	p, err := s.newSnapshots(g)
	if err != nil {
		s.log.Error("no live-state snapshots of this shard", "shard", g.Shard, "error", err)
		return nil, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { p.run(ctx) })
	return p, func() {
		cancel()
		wg.Wait()
	}
}

func (s *Service) newSnapshots(g Grant) (*snapshots, error) {
	m := s.snapshots
	p := &snapshots{s: s, grant: g, reader: intake.NewReader(s.store, g.Shard)}
	c, err := snapshot.NewChain(snapshot.Config{
		Store: s.store, Table: s.table, Queue: s.queue, AuthorityID: s.cfg.AuthorityID, Shard: g.Shard, Shards: s.cfg.Shards, Fence: g.Fence,
		Owner: fmt.Sprintf("%s.snapshot.%d", s.run, s.jobs.Add(1)), Window: s.cfg.Snapshot.Window + snapshotMargin, Hold: s.cfg.Jobs.Hold,
		Interval: s.cfg.Snapshot.Interval, TimeLimit: s.cfg.Jobs.TimeLimit,
		MaxPending: s.cfg.Intake.MaxPending, Frames: s.frames.all, Refill: p.refill, Now: s.now,
		Events: snapshot.Events{
			Committed: func(*snapshot.Snapshot) { m.committed.Inc() },
			Packed: func(r snapshot.Ref, merged bool) {
				kind := "new"
				if merged {
					kind = "merged"
				}
				m.packs.WithLabelValues(kind).Inc()
				m.bytes.Add(float64(r.Bytes))
			},
			Skipped: func(e accepted.Batch) {
				m.skipped.Inc()
				s.log.Warn("snapshots go without a batch whose frame can't be read", "batch", e.Identity)
			},
			Collected: func(snapshots, packs int, err error) {
				m.deleted.WithLabelValues("snapshot").Add(float64(snapshots))
				m.deleted.WithLabelValues("pack").Add(float64(packs))
				if err != nil {
					s.log.Warn("old snapshots are deleted next time", "shard", g.Shard, "error", err)
				}
			},
			Lost: func(err error) {
				m.failures.Inc()
				s.log.Warn("snapshot goes on without an object that can't be read", "shard", g.Shard, "error", err)
			},
		},
	})
	if err != nil {
		return nil, err
	}
	p.chain = c
	return p, nil
}

// offer hands in what the owner has read of the intake.
func (p *snapshots) offer(entries []accepted.Batch) {
	if p != nil {
		p.chain.Offer(entries)
	}
}

// run ends with ctx.
func (p *snapshots) run(ctx context.Context) {
	name := p.grant.Shard.String()
	defer p.s.snapshots.pending.DeleteLabelValues(name)
	defer p.s.snapshots.number.DeleteLabelValues(name)
	for ctx.Err() == nil {
		again, err := p.step(ctx)
		if err != nil && ctx.Err() == nil {
			p.s.snapshots.failures.Inc()
			p.s.log.Warn("snapshot failed; it is tried again", "shard", p.grant.Shard, "error", err)
		}
		p.s.snapshots.pending.WithLabelValues(name).Set(float64(p.chain.Pending()))
		if s := p.chain.Newest(); s != nil {
			p.s.snapshots.number.WithLabelValues(name).Set(float64(s.Number))
		}
		if !again {
			_ = run.WallClock{}.Sleep(ctx, min(p.s.cfg.Snapshot.Interval, pollMessages)) // the loop's condition says when it was cut short
		}
	}
}

// pollMessages is the longest time between two looks for messages of one topic.
const pollMessages = 5 * time.Second

// step takes one message; again says that there may be another at once.
func (p *snapshots) step(ctx context.Context) (again bool, err error) {
	if err := p.s.snapshots.slots.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer p.s.snapshots.slots.Release(1)
	if err := p.grant.lost(); err != nil {
		return false, fmt.Errorf("the grant is over: %w", err)
	}
	switch o, err := p.chain.Step(ctx); o {
	case work.Completed, work.Duplicate, work.HandedOver: // what was handed over waits for a slot again
		return true, err
	case work.Fenced, work.Lost, work.Busy:
		p.s.log.Debug("snapshot is another worker's", "shard", p.grant.Shard, "outcome", o, "error", err)
		return false, nil
	default:
		return false, err
	}
}

// refill reads what is new in the intake, while there is room.
func (p *snapshots) refill(ctx context.Context) error {
	for more := true; more && p.chain.Room(); {
		var err error
		if more, err = p.follow(ctx); err != nil {
			return err
		}
	}
	return nil
}

var errNoRoom = errors.New("no room")

// follow reads new segments while there is room.
func (p *snapshots) follow(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, segmentsTimeout)
	defer cancel()
	more, err = p.reader.Poll(ctx, segmentsAtOnce, func(key string) error {
		if !p.chain.Room() {
			return errNoRoom
		}
		seg, err := p.s.readSegment(ctx, key)
		var foreign *ForeignSegmentError
		switch {
		case errors.Is(err, record.ErrCorrupt), errors.As(err, &foreign), errors.Is(err, objstore.ErrNotFound):
			return nil // the owner tells of the former two
		case err != nil:
			return err
		}
		p.chain.Offer(seg.Entries)
		return nil
	})
	if errors.Is(err, errNoRoom) {
		return true, nil
	}
	return more, err
}

// all reads the frames of entries, some at once; nil for one that can't be read.
func (f *frames) all(ctx context.Context, entries []accepted.Batch) ([][]byte, error) {
	out := make([][]byte, len(entries))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(f.readers, 1))
	for i, e := range entries {
		g.Go(func() error {
			raw, err := f.get(ctx, e)
			var bad *UnreadableError
			if errors.As(err, &bad) {
				return nil
			}
			out[i] = raw
			return err
		})
	}
	return out, g.Wait()
}
