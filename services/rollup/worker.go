package rollup

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	workmem "lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/arrivals"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/build"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/job"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/listing"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/maintain"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metadata"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/owner"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/schedule"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/sizing"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/snapshots"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/storeclock"
)

// Deps are what a worker is built over.
type Deps struct {
	Store     objstore.Store
	Telemetry *telemetry.Telemetry
	// Ownership says which shards are this worker's; nil is all of them: a worker alone.
	Ownership ownership.Ownership
	// Queue and Table are the pending work; nil are in memory: a worker alone.
	Queue work.Queue
	Table work.Table
	// Refs is the metadata store of reference sets, the same for all workers of an authority.
	Refs publish.Refs
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Close is called when Run ends; it may be nil.
	Close func() error
	// Policy of publications; the zero value is the default one.
	Policy publish.Policy
}

// withDefaults gives d with what may be left out of it.
func (d Deps) withDefaults(cfg Config) Deps {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Ownership == nil {
		d.Ownership = ownership.Static{Fence: 1}
	}
	if d.Queue == nil || d.Table == nil {
		m := workmem.New(d.Now, workmem.Options{})
		d.Queue, d.Table = m, m
	}
	if d.Policy == (publish.Policy{}) {
		d.Policy = publish.DefaultPolicy()
		d.Policy.Grace = cfg.Collect.Grace
	}
	if d.Close == nil {
		d.Close = func() error { return nil }
	}
	return d
}

// worker is everything that works on an authority, once its id is known. It has no decisions of
// its own: it says which part gets what.
type worker struct {
	cfg   Config // with the authority's id
	deps  Deps
	log   *slog.Logger
	board *status.Board

	publisher    *publish.Publisher
	records      hour.Records
	frames       *frames.Reader
	arrivals     *arrivals.Hub
	builder      *build.Builder
	owners       owner.Config
	snapshots    *snapshots.Maker
	compaction   *maintain.Compaction
	retention    *maintain.Retention
	copies       *maintain.Copies
	collection   *maintain.Collection
	reprocessing *maintain.Reprocessing
}

// pollRequests is the longest time between two polls for requests to reprocess.
const pollRequests = 5 * time.Second

func newWorker(cfg Config, d Deps, log *slog.Logger, m *metrics.Metrics, board *status.Board) (*worker, error) {
	w := &worker{cfg: cfg, deps: d, log: log, board: board}
	process := run.RandomID()
	p := publicationOf(cfg, d, log, m)
	var err error
	if w.publisher, err = publish.NewPublisher(p); err != nil {
		return nil, err
	}
	collector, err := publish.NewCollector(p)
	if err != nil {
		return nil, err
	}
	// Compactions and jobs share the slots, because each takes the memory of a job.
	slots := semaphore.NewWeighted(int64(cfg.Jobs.Concurrency))
	limits := sizing.Limits{Memory: int64(cfg.Jobs.Memory), MaxParts: cfg.Jobs.MaxParts}
	storeTime := storeclock.Clock{Store: d.Store, Now: d.Now, Observe: m.ObserveClock}
	w.records = hour.Records{Store: d.Store, AuthorityID: cfg.AuthorityID, Shards: cfg.Shards}
	w.frames = &frames.Reader{Store: d.Store, MaxFrame: int64(cfg.Jobs.MaxFrame), AtOnce: cfg.Jobs.Readers, Removed: framelog.NewIndex(d.Store, cfg.AuthorityID).Removed}
	hub := arrivals.Config{
		Store: d.Store, Authority: cfg.AuthorityID, Shards: cfg.Shards, Interval: cfg.Follow.Interval, Idle: cfg.Follow.Idle, Watch: cfg.Follow.Watch,
		Gather: cfg.Follow.Gather, MaxQueued: cfg.Follow.MaxPending, Metrics: m, Log: log,
		Peers: peerframes.New(peerframes.Config{Wait: cfg.Follow.FramesWait, Now: d.Now, Log: log, Metrics: m.Peers}),
	}
	// Without snapshots nobody reads a frame before its hour is over, and memory does not last so long.
	if cfg.Follow.FramesMemory > 0 && cfg.Snapshot.Interval > 0 {
		w.frames.Arrived = frames.NewArrived(int64(cfg.Follow.FramesMemory), m.PeerBytes.Set)
		hub.Frames = w.frames.Arrived
	}
	w.arrivals = arrivals.New(hub)
	w.snapshots = snapshots.NewMaker(snapshots.Config{
		Settings: cfg.Snapshot, Store: d.Store, Table: d.Table, Hub: w.arrivals, Frames: w.frames, Metrics: m, Log: log, Now: d.Now,
		AuthorityID: cfg.AuthorityID, Shards: cfg.Shards, Process: process, MaxPending: cfg.Follow.MaxPending,
		Hold: cfg.Jobs.Hold, TimeLimit: cfg.Jobs.TimeLimit,
	})
	// Jobs read what the snapshots have packed already, many frames with one request. Snapshots are made of what arrived, and of blobs.
	packed := *w.frames
	packed.Packs = w.snapshots.Packs
	learned := metadata.New(metadata.Config{Store: d.Store, Metrics: m, Log: log, Now: d.Now, AuthorityID: cfg.AuthorityID})
	w.builder = build.New(build.Config{
		Store: d.Store, Frames: &packed, Metrics: m, Log: log, AuthorityID: cfg.AuthorityID, Memory: limits.Memory, Dir: cfg.Jobs.Dir,
		Learn:      learned.Learn,
		MetricRows: cfg.Chunks.MetricSamples, MaxRows: cfg.Chunks.MaxSamples, MayUnroll: cfg.Retention.Within(timegrid.Raw, timegrid.OneMinute, timegrid.FiveMinutes),
	})
	w.owners = owner.Config{
		Store: d.Store, Records: w.records, Frames: w.frames, Board: board, Metrics: m, Log: log, Now: d.Now, Jitter: rand.Float64, Helps: learned,
		Jobs: job.New(job.Config{
			Store: d.Store, Records: w.records, Builder: w.builder, Frames: &packed, Helps: learned, Publisher: w.publisher, Metrics: m, Log: log, Now: d.Now,
			Limits: limits, Slots: slots, WorkerID: cfg.ID, Process: process,
		}),
		Schedule: schedule.Policy(cfg.Schedule), Hub: w.arrivals,
		Asides: listing.New(d.Store, layout.RollupAsidePrefix), Requests: listing.New(d.Store, layout.RepairRequestsPrefix),
		Interval: cfg.Follow.Interval, Recheck: cfg.Follow.Recheck,
		Deltas:    owner.DeltasConfig{RawKept: cfg.Retention.Raw, Grace: d.Policy.Grace},
		RawFrames: owner.FramesConfig{Keep: cfg.Retention.RawFrames, Interval: cfg.Retention.Interval, AtOnce: cfg.Jobs.Readers, WorkerID: cfg.ID, Clock: storeTime},
	}
	w.copies = maintain.NewCopies(maintain.CopiesDeps{
		Store: d.Store, Board: board, Metrics: m, Log: log, Now: d.Now, AuthorityID: cfg.AuthorityID, AtOnce: cfg.Jobs.Readers,
	})
	w.compaction, err = maintain.NewCompaction(cfg.Compact, maintain.CompactionDeps{
		Store: d.Store, Publisher: w.publisher, Board: board, Metrics: m, Log: log, Now: d.Now, AuthorityID: cfg.AuthorityID, Slots: slots, Merged: w.copies.Changed,
	})
	if err != nil {
		return nil, err
	}
	w.retention, err = maintain.NewRetention(cfg.Retention, maintain.RetentionDeps{
		Store: d.Store, Publisher: w.publisher, Board: board, Metrics: m, Log: log, Now: d.Now, Clock: storeTime,
		AuthorityID: cfg.AuthorityID, WorkerID: cfg.ID,
	})
	if err != nil {
		return nil, err
	}
	w.collection = &maintain.Collection{Collector: collector, Board: board, Metrics: m, Log: log, Shards: cfg.Shards, Interval: cfg.Collect.Interval, Now: d.Now}
	steps, err := work.NewWorker(d.Queue, d.Table, reprocess.NewHandler(d.Store, cfg.AuthorityID, cfg.Shards), work.Config{
		Topic: reprocess.Topic, Owner: process + ".reprocess", Hold: cfg.Jobs.Hold, TimeLimit: cfg.Jobs.TimeLimit,
	}, d.Now)
	if err != nil {
		return nil, err
	}
	w.reprocessing = &maintain.Reprocessing{Worker: steps, Metrics: m, Log: log, Poll: min(cfg.Follow.Interval, pollRequests)}
	return w, nil
}

func publicationOf(cfg Config, d Deps, log *slog.Logger, m *metrics.Metrics) publish.Config {
	return publish.Config{
		Store: d.Store, Refs: d.Refs, Clock: clock{d.Now}, AuthorityID: cfg.AuthorityID, WorkerID: cfg.ID, Policy: d.Policy,
		Each: run.Each(cfg.Jobs.Readers),
		Queue: publish.NewObjectQueue(d.Store, func(key string, err error) {
			log.Error("item of the delayed queue can't be read", "key", key, "error", err)
		}),
		Events: publish.Events{
			Phase: func(p publish.Phase, took time.Duration) {
				m.Phase.WithLabelValues(string(p)).Observe(took.Seconds())
			},
			Collected: func(e publish.Entry) { m.Collected.WithLabelValues(string(e.Action)).Inc() },
		},
	}
}

// clock is the service's, and waits in real time.
type clock struct{ now func() time.Time }

func (c clock) Now() time.Time { return c.now() }

func (clock) Sleep(ctx context.Context, d time.Duration) error { return run.WallClock{}.Sleep(ctx, d) }

// run owns shards and does what is to be done beside them, until ctx ends.
func (w *worker) run(ctx context.Context) error {
	g := run.NewGroup(ctx)
	g.Go("ownership", func(ctx context.Context) error { return w.deps.Ownership.Own(ctx, w.cfg.Shards, w.own) })
	g.Go("arrivals", w.arrivals.Run)
	g.Go("frames", w.arrivals.TakeFrames)
	for _, addr := range w.cfg.Follow.Watch {
		g.Go("watch "+addr, func(ctx context.Context) error { return w.arrivals.Watch(ctx, addr, w.cfg.Follow.WatchClient) })
	}
	g.Go("collect", w.collection.Run)
	g.Go("compact", w.compaction.Run)
	g.Go("retain", w.retention.Run)
	g.Go("copy", w.copies.Run)
	g.Go("reprocess", w.reprocessing.Run)
	return g.Wait()
}

// own works on a shard until ctx ends.
func (w *worker) own(ctx context.Context, g ownership.Grant) error {
	snaps, err := w.snapshots.Loop(g)
	if err != nil {
		// Queries start without snapshots, only slower, so the shard's hours are rolled up all the same.
		w.log.Error("no live-state snapshots of this shard", "shard", g.Shard, "error", err)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { snaps.Run(ctx) })
	if err := w.newOwner(g, snaps).Run(ctx); err != nil {
		return fmt.Errorf("shard %s: %w", g.Shard, err)
	}
	return nil
}

func (w *worker) newOwner(g ownership.Grant, snaps *snapshots.Loop) *owner.Owner {
	return owner.New(w.owners, g, snaps)
}
