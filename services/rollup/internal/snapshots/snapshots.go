// Package snapshots makes the live-state snapshots of owned shards, from which query nodes
// start, and says which packs of them have the frames of a job. Each shard has a loop of its own
// beside its owner, so that a long rollup job holds up no snapshot.
package snapshots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/arrivals"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// Settings of live-state snapshots.
type Settings struct {
	Interval time.Duration `koanf:"interval" help:"time between two live-state snapshots of a shard; 0 makes none"`
	Window   time.Duration `koanf:"window" help:"how far back snapshots hold frames, by sample time: history.window of the query nodes" needs:"interval"`
}

// DefaultSettings fit the defaults of query nodes.
func DefaultSettings() Settings {
	return Settings{Interval: time.Minute, Window: snapshot.DefaultWindow}
}

// Validate checks ranges.
func (c Settings) Validate() error {
	if c.Interval < 0 || c.Window <= 0 {
		return errors.New("snapshot: interval must not be negative, window must be greater than 0")
	}
	return nil
}

const (
	// AtOnce is how many shards of a worker are at their snapshots at once: each may take the
	// memory of a few packs.
	AtOnce = 2
	// poll is the longest time between two steps of a loop, which ask nobody where nothing is due, and retryMax that after
	// failures.
	poll, retryMax = 5 * time.Second, 80 * time.Second
	// lastSnapshot bounds the snapshot that a shard gets before it is given back.
	lastSnapshot = 5 * time.Second
	// margin is kept beyond the window: query nodes read manifests of so much before their
	// history, for clocks that differ, and a snapshot has its age.
	margin = 20 * time.Minute
)

// Config of the snapshots of one worker.
type Config struct {
	Settings
	Store       objstore.Store
	Table       work.Table
	Hub         *arrivals.Hub
	Frames      *frames.Reader
	Metrics     *metrics.Metrics
	Log         *slog.Logger
	Now         func() time.Time
	AuthorityID string
	Shards      uint32
	// Process is a random name of this process.
	Process string
	// MaxPending bounds the batches that are remembered for the next snapshot of a shard.
	MaxPending int
	// Hold and TimeLimit of a job.
	Hold, TimeLimit time.Duration
}

// Maker makes the loops of one worker.
type Maker struct {
	cfg   Config
	slots *semaphore.Weighted
	loops atomic.Uint64

	mu      sync.Mutex
	running map[shard.ID]*Loop
}

// NewMaker makes no snapshot by itself.
func NewMaker(c Config) *Maker {
	return &Maker{cfg: c, slots: semaphore.NewWeighted(AtOnce), running: map[shard.ID]*Loop{}}
}

// Packs gives the packs of a shard's newest snapshot that save requests to whoever reads the frames of all
// entries, which are of one shard. A worker that has just begun asks the store for the snapshot of the owner before it;
// where it does not own the shard there are none.
func (m *Maker) Packs(ctx context.Context, entries []accepted.Batch) []frames.Pack {
	if len(entries) == 0 {
		return nil
	}
	m.mu.Lock()
	l := m.running[shard.Of(entries[0].Identity.Agent, m.cfg.Shards)]
	m.mu.Unlock()
	if l == nil {
		return nil
	}
	s, err := l.chain.Load(ctx)
	if err != nil && ctx.Err() == nil {
		m.cfg.Log.Warn("the newest snapshot can't be read; the blobs of its frames are", "shard", l.grant.Shard, "error", err)
	}
	if s == nil {
		return nil
	}
	return packsOf(&m.cfg, s, entries)
}

// Loop makes the snapshots of one owned shard. A nil one does nothing.
type Loop struct {
	m     *Maker
	grant ownership.Grant
	chain *snapshot.Chain
	// refused: there was no room for a batch that was offered.
	refused atomic.Bool
}

// Loop makes the loop of a shard; nil where snapshots are off.
func (m *Maker) Loop(g ownership.Grant) (*Loop, error) {
	c := m.cfg
	if c.Interval == 0 {
		return nil, nil
	}
	l := &Loop{m: m, grant: g}
	chain, err := snapshot.NewChain(snapshot.Config{
		Store: c.Store, Table: c.Table, AuthorityID: c.AuthorityID, Shard: g.Shard, Shards: c.Shards, Fence: g.Fence,
		// A process may own a shard twice, one grant after the other, and claims must tell them apart.
		Owner:  fmt.Sprintf("%s.snapshot.%d", c.Process, m.loops.Add(1)),
		Window: c.Window + margin, Hold: c.Hold, Interval: c.Interval, TimeLimit: c.TimeLimit,
		MaxPending: c.MaxPending, Frames: c.Frames.All, Refill: l.refill, Now: c.Now, Events: l.events(),
	})
	if err != nil {
		return nil, err
	}
	l.chain = chain
	return l, nil
}

func (l *Loop) events() snapshot.Events {
	m, log := l.m.cfg.Metrics, l.m.cfg.Log
	return snapshot.Events{
		Committed: func(*snapshot.Snapshot) { m.Snapshots.Inc() },
		Packed: func(r snapshot.Ref, merged bool) {
			kind := "new"
			if merged {
				kind = "merged"
			}
			m.SnapshotPacks.WithLabelValues(kind).Inc()
			m.SnapshotBytes.Add(float64(r.Bytes))
		},
		Skipped: func(e accepted.Batch) {
			m.SnapshotSkipped.Inc()
			log.Warn("snapshots go without a batch whose frame can't be read", "batch", e.Identity)
		},
		Collected: func(snapshots, packs int, err error) {
			m.SnapshotDeleted.WithLabelValues("snapshot").Add(float64(snapshots))
			m.SnapshotDeleted.WithLabelValues("pack").Add(float64(packs))
			if err != nil {
				log.Warn("old snapshots are deleted next time", "shard", l.grant.Shard, "error", err)
			}
		},
		Lost: func(err error) {
			m.SnapshotFailures.Inc()
			log.Warn("snapshot continues without an object that can't be read", "shard", l.grant.Shard, "error", err)
		},
	}
}

// Offer hands in what has arrived. It does not block.
func (l *Loop) Offer(entries []accepted.Batch) {
	if l != nil && !l.chain.Offer(entries) {
		l.refused.Store(true)
	}
}

// Run makes snapshots until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	if l == nil {
		return
	}
	l.begin()
	defer l.end()
	name, m := l.grant.Shard.String(), l.m.cfg.Metrics
	defer m.SnapshotPending.DeleteLabelValues(name)
	defer m.SnapshotNumber.DeleteLabelValues(name)
	every := min(l.m.cfg.Interval, poll)
	failures := run.NewBackoff(max(every, time.Millisecond), max(time.Millisecond, min(l.m.cfg.Interval, retryMax)))
	for ctx.Err() == nil {
		again, err := l.step(ctx)
		if err != nil && ctx.Err() == nil {
			m.SnapshotFailures.Inc()
			l.m.cfg.Log.Warn("snapshot failed; it is tried again", "shard", l.grant.Shard, "error", err)
		}
		m.SnapshotPending.WithLabelValues(name).Set(float64(l.chain.Pending()))
		if s := l.chain.Newest(); s != nil {
			m.SnapshotNumber.WithLabelValues(name).Set(float64(s.Number))
		}
		// The loop's condition says when a wait was cut short.
		switch {
		case err != nil:
			_ = failures.Sleep(ctx)
		case !again:
			failures.Reset()
			_ = run.WallClock{}.Sleep(ctx, every)
		}
	}
	l.finish(ctx)
}

// finish packs what waits, before the shard is another owner's, who would read it frame by frame.
func (l *Loop) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSnapshot)
	defer cancel()
	if l.grant.Taken() != nil || l.m.slots.Acquire(ctx, 1) != nil {
		return
	}
	defer l.m.slots.Release(1)
	if err := l.chain.Finish(ctx); err != nil || l.chain.Pending() > 0 {
		l.m.cfg.Log.Info("the shard is given back with frames that are in no pack", "shard", l.grant.Shard, "batches", l.chain.Pending(), "error", err)
	}
}

// begin makes the loop's snapshots known to those who read frames.
func (l *Loop) begin() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	l.m.running[l.grant.Shard] = l
}

func (l *Loop) end() {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	// The shard may be this worker's again already, under its next grant.
	if l.m.running[l.grant.Shard] == l {
		delete(l.m.running, l.grant.Shard)
	}
}

// step makes a snapshot if that is due; again says that another may be due at once.
func (l *Loop) step(ctx context.Context) (again bool, err error) {
	if err := l.m.slots.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer l.m.slots.Release(1)
	if err := l.grant.Lost(); err != nil {
		return false, fmt.Errorf("the grant is over: %w", err)
	}
	switch o, err := l.chain.Step(ctx); o {
	case work.Completed, work.HandedOver:
		// What was handed over waits for a slot again, behind the other shards.
		return true, err
	case work.Fenced, work.Lost, work.Busy:
		l.m.cfg.Log.Debug("snapshot is another worker's", "shard", l.grant.Shard, "outcome", o, "error", err)
		return false, nil
	default:
		return false, err
	}
}

// refill brings back what there was no room for, once there is room: what the journal has after the shard's progress.
func (l *Loop) refill(ctx context.Context) error {
	if !l.chain.Room() || !l.refused.Swap(false) {
		return nil
	}
	c := l.m.cfg
	p, _, err := progress.Read(ctx, c.Store, c.AuthorityID, l.grant.Shard, c.Shards)
	if err != nil && !errors.Is(err, objstore.ErrNotFound) && !errors.Is(err, record.ErrCorrupt) {
		l.refused.Store(true)
		return err
	}
	l.Offer(p.Pending)
	_, err = c.Hub.CatchUp(ctx, l.grant.Shard, p.Positions, func(batches []accepted.Batch) error {
		if !l.refused.Load() {
			l.Offer(batches)
		}
		return nil
	})
	if err != nil {
		l.refused.Store(true)
	}
	return err
}
