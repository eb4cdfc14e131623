// Package snapshots makes the live-state snapshots of owned shards, from which query nodes
// start. Each shard has a loop of its own beside its owner, so that a long rollup job holds up
// no snapshot.
package snapshots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/queries/snapshot"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/segments"
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
	// PollMessages is the longest time between two polls for messages of one topic.
	PollMessages = 5 * time.Second
	// margin is kept beyond the window: query nodes read manifests of so much before their
	// history, for clocks that differ, and a snapshot has its age.
	margin = 20 * time.Minute
)

// Config of the snapshots of one worker.
type Config struct {
	Settings
	Store       objstore.Store
	Table       work.Table
	Queue       work.Queue
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
	// Hold and TimeLimit of a message.
	Hold, TimeLimit time.Duration
}

// Maker makes the loops of one worker.
type Maker struct {
	cfg   Config
	slots *semaphore.Weighted
	loops atomic.Uint64
}

// NewMaker makes no snapshot by itself.
func NewMaker(c Config) *Maker { return &Maker{cfg: c, slots: semaphore.NewWeighted(AtOnce)} }

// Loop makes the snapshots of one owned shard. A nil one does nothing.
type Loop struct {
	m        *Maker
	grant    ownership.Grant
	chain    *snapshot.Chain
	reader   *intake.Reader
	segments segments.Reader
}

// Loop makes the loop of a shard; nil where snapshots are off.
func (m *Maker) Loop(g ownership.Grant) (*Loop, error) {
	c := m.cfg
	if c.Interval == 0 {
		return nil, nil
	}
	l := &Loop{m: m, grant: g, reader: intake.NewReader(c.Store, g.Shard), segments: segments.Reader{Store: c.Store, Shards: c.Shards}}
	chain, err := snapshot.NewChain(snapshot.Config{
		Store: c.Store, Table: c.Table, Queue: c.Queue, AuthorityID: c.AuthorityID, Shard: g.Shard, Shards: c.Shards, Fence: g.Fence,
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

// Offer hands in what the shard's owner has read of the intake.
func (l *Loop) Offer(entries []accepted.Batch) {
	if l != nil {
		l.chain.Offer(entries)
	}
}

// Run makes snapshots until ctx ends.
func (l *Loop) Run(ctx context.Context) {
	if l == nil {
		return
	}
	name, m := l.grant.Shard.String(), l.m.cfg.Metrics
	defer m.SnapshotPending.DeleteLabelValues(name)
	defer m.SnapshotNumber.DeleteLabelValues(name)
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
		if !again {
			_ = run.WallClock{}.Sleep(ctx, min(l.m.cfg.Interval, PollMessages)) // the loop's condition says when it was cut short
		}
	}
}

// step takes one message; again says that there may be another at once.
func (l *Loop) step(ctx context.Context) (again bool, err error) {
	if err := l.m.slots.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer l.m.slots.Release(1)
	if err := l.grant.Lost(); err != nil {
		return false, fmt.Errorf("the grant is over: %w", err)
	}
	switch o, err := l.chain.Step(ctx); o {
	case work.Completed, work.Duplicate, work.HandedOver:
		// What was handed over waits for a slot again, behind the other shards.
		return true, err
	case work.Fenced, work.Lost, work.Busy:
		l.m.cfg.Log.Debug("snapshot is another worker's", "shard", l.grant.Shard, "outcome", o, "error", err)
		return false, nil
	default:
		return false, err
	}
}

// refill reads what is new in the intake, while there is room.
func (l *Loop) refill(ctx context.Context) error {
	// The owner offers what it reads, but it stops reading when it has no room for pending batches.
	// Snapshots must hold new batches all the same, so they read on by themselves.
	for more := true; more && l.chain.Room(); {
		var err error
		if more, err = l.follow(ctx); err != nil {
			return err
		}
	}
	return nil
}

// follow reads some new segments.
func (l *Loop) follow(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, segments.PollTimeout)
	defer cancel()
	more, err = l.reader.Poll(ctx, segments.PerPoll, func(key string) error {
		if !l.chain.Room() {
			return segments.ErrNoRoom
		}
		seg, err := l.segments.Read(ctx, key)
		var foreign *segments.ForeignError
		switch {
		case errors.Is(err, record.ErrCorrupt), errors.As(err, &foreign), errors.Is(err, objstore.ErrNotFound):
			return nil // the shard's owner tells of the former two
		case err != nil:
			return err
		}
		l.chain.Offer(seg.Entries)
		return nil
	})
	if errors.Is(err, segments.ErrNoRoom) {
		return true, nil
	}
	return more, err
}
