// Package rollup is the service that rolls accepted batches up: it owns shards, follows
// their intake, and publishes each hour of a shard as raw series and as buckets of a
// minute, five minutes and an hour. Late batches make the next generation of exactly
// their hours.
package rollup

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	workmem "lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Deps are what a worker is built over.
type Deps struct {
	Store     objstore.Store
	Telemetry *telemetry.Telemetry
	// Ownership says which shards are this worker's; nil is all of them: a worker alone.
	Ownership Ownership
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

// Service is one worker. Any number may run over one authority.
type Service struct {
	*service.Server
	cfg   Config
	store objstore.Store
	log   *slog.Logger
	now   func() time.Time
	m     *metrics

	ownership Ownership
	queue     work.Queue
	table     work.Table
	refs      publish.Refs
	policy    publish.Policy
	close     func() error
	frames    frames
	slots     *semaphore.Weighted
	snapshots *snapshotter
	run       string // random name of this process in claims
	jobs      atomic.Uint64

	// Made by Run, once the authority is known.
	publisher *publish.Publisher
	collector *publish.Collector

	mu     sync.Mutex
	status map[shard.ID]ShardStatus

	begun atomic.Bool
}

// ShardStatus is what a worker says of a shard that it owns.
type ShardStatus struct {
	Shard string `json:"shard"`
	Fence uint64 `json:"fence"`
	// PendingBatches are not covered by blocks, PendingHours what they lie in.
	PendingBatches int      `json:"pending_batches"`
	PendingHours   []string `json:"pending_hours"`
	// LeftOut are pending batches whose frames can't be read, Stuck those of hours that fail
	// for good, Shelved those that were forgotten to make room, until a second look.
	LeftOut int `json:"left_out"`
	Stuck   int `json:"stuck"`
	Shelved int `json:"shelved"`
	// PutAside are segments of the intake that can't be taken now.
	PutAside int `json:"segments_put_aside"`
	// Aside are pending batches of agents that are set aside for an hour of theirs, AgentHours those.
	Aside      int `json:"set_aside"`
	AgentHours int `json:"agent_hours_set_aside"`
}

// New builds a worker; it does nothing before Run.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("rollup: %w", err)
	}
	if d.Store == nil || d.Telemetry == nil || d.Refs == nil {
		return nil, errors.New("rollup: needs a store, telemetry and reference sets")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Ownership == nil {
		d.Ownership = Static{Fence: 1}
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
	srv, err := service.New("rollup", cfg.Base, cfg, d.Telemetry, service.Options{})
	if err != nil {
		return nil, err
	}
	cfg.ID = srv.ID()
	s := &Service{
		Server: srv, cfg: cfg, store: d.Store, log: srv.Log(), now: d.Now,
		m:         newMetrics(d.Telemetry.Registry),
		ownership: d.Ownership, queue: d.Queue, table: d.Table, refs: d.Refs, policy: d.Policy, close: d.Close,
		frames: frames{store: d.Store, maxFrame: int64(cfg.Jobs.MaxFrame), readers: cfg.Jobs.Readers},
		slots:  semaphore.NewWeighted(int64(cfg.Jobs.Concurrency)), run: run.RandomID(),
		snapshots: newSnapshotter(d.Telemetry.Registry),
		status:    map[shard.ID]ShardStatus{},
	}
	srv.Probe("store", cfg.Probe(d.Store))
	srv.Readiness().Check("authority", s.notBegun)
	if o, ok := d.Ownership.(interface{ Err() error }); ok {
		srv.Readiness().Check("coordinator", o.Err)
	}
	srv.Handle(web.Route{Pattern: "GET /v1/rollup/shards", About: "shards of this worker, and what is pending",
		Roles: []web.Role{web.RoleReader, web.RoleOperator}, Handler: http.HandlerFunc(s.listShards)})
	srv.Go("shards", s.work)
	return s, nil
}

// Run owns shards and rolls up until ctx ends; a job in work is handed over.
func (s *Service) Run(ctx context.Context) error {
	return errors.Join(s.Server.Run(ctx), s.close())
}

// work finds the authority, begins the epoch of the reference sets, and owns shards.
func (s *Service) work(ctx context.Context) error {
	err := s.until(ctx, "authority", func(ctx context.Context) error {
		if err := s.authority(ctx); err != nil {
			return err
		}
		return intake.EnsureShards(ctx, s.store, s.cfg.Shards)
	})
	if err != nil {
		return err
	}
	if err := s.publication(); err != nil {
		return fmt.Errorf("rollup: %w", err)
	}
	if err := s.until(ctx, "reference sets", s.initEpoch); err != nil {
		return err
	}
	s.begun.Store(true)
	g := run.NewGroup(ctx)
	g.Go("ownership", func(ctx context.Context) error { return s.ownership.Own(ctx, s.cfg.Shards, s.own) })
	g.Go("collect", s.collect)
	g.Go("maintain", s.maintain)
	g.Go("reprocess", s.reprocess)
	return g.Wait()
}

// until tries again until fn succeeds, or says that it never will.
func (s *Service) until(ctx context.Context, what string, fn func(context.Context) error) error {
	for backoff := run.NewBackoff(s.cfg.Schedule.RetryBase, s.cfg.Schedule.RetryMax); ; {
		err := fn(ctx)
		var shards *intake.ShardsError
		switch {
		case err == nil:
			return nil
		case errors.As(err, &shards), errors.Is(err, errAuthority), errors.Is(err, record.ErrCorrupt), errors.Is(err, record.ErrNewerVersion):
			return fmt.Errorf("rollup: %w", err)
		}
		s.log.Warn("not there yet; it is tried again", "what", what, "error", err)
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
	}
}

var errAuthority = errors.New("the bucket is of another authority")

// authority compares the configured id with the bucket's, or takes that.
func (s *Service) authority(ctx context.Context) error {
	id, err := accept.ReadAuthority(ctx, s.store)
	if err != nil {
		return err
	}
	if s.cfg.AuthorityID != "" && s.cfg.AuthorityID != id {
		return fmt.Errorf("%w: %q, configured is %q", errAuthority, id, s.cfg.AuthorityID)
	}
	s.cfg.AuthorityID = id
	return nil
}

func (s *Service) publication() error {
	c := publish.Config{
		Store: s.store, Refs: s.refs, Clock: clock{s.now}, AuthorityID: s.cfg.AuthorityID, WorkerID: s.cfg.ID, Policy: s.policy,
		Queue: publish.NewObjectQueue(s.store, func(key string, err error) {
			s.log.Error("item of the delayed queue can't be read", "key", key, "error", err)
		}),
		Events: publish.Events{
			Phase: func(p publish.Phase, took time.Duration) {
				s.m.phase.WithLabelValues(string(p)).Observe(took.Seconds())
			},
			Collected: func(e publish.Entry) { s.m.collected.WithLabelValues(string(e.Action)).Inc() },
		},
	}
	var err error
	if s.publisher, err = publish.NewPublisher(c); err != nil {
		return err
	}
	s.collector, err = publish.NewCollector(c)
	return err
}

// clock is the service's, and waits in real time.
type clock struct{ now func() time.Time }

func (c clock) Now() time.Time { return c.now() }

func (clock) Sleep(ctx context.Context, d time.Duration) error { return run.WallClock{}.Sleep(ctx, d) }

func (s *Service) initEpoch(ctx context.Context) error {
	_, err := s.collector.InitEpoch(ctx, rand.Reader, false)
	return err
}

// collectAtOnce bounds the items of the delayed queue between two looks at the epoch.
const collectAtOnce = 100

// collect works the delayed queue off, and begins a new epoch of the reference sets where the
// metadata store lost them.
func (s *Service) collect(ctx context.Context) error {
	if s.cfg.Collect.Interval == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	swept := earliest - 1
	for {
		if err := (run.WallClock{}).Sleep(ctx, s.cfg.Collect.Interval); err != nil {
			return err
		}
		var err error
		if swept, err = s.collectOnce(ctx, swept); err != nil && ctx.Err() == nil {
			s.log.Warn("delayed collection failed; it goes on at the next interval", "error", err)
		}
	}
}

// collectOnce works off what is due and sweeps an hour after swept: crashes left things
// that nobody queued. It gives the hour to go on from.
func (s *Service) collectOnce(ctx context.Context, swept timegrid.Hour) (timegrid.Hour, error) {
	err := s.initEpoch(ctx)
	for err == nil {
		var r publish.Report
		if r, err = s.collector.Step(ctx, collectAtOnce); r.Items < collectAtOnce {
			break
		}
	}
	// A bad item, or an hour that can't be read, does not keep the sweep from the others.
	h, queued, serr := s.sweepNext(ctx, swept)
	err = errors.Join(err, serr)
	s.m.swept.Add(float64(queued))
	return h, err
}

var errNotBegun = errors.New("authority and reference sets are not there yet")

// notBegun says that the worker does not know yet what it works on.
func (s *Service) notBegun() error {
	if s.begun.Load() {
		return nil
	}
	return errNotBegun
}

// listShards answers with the shards that this worker owns.
func (s *Service) listShards(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"worker_id": s.cfg.ID, "shards": s.Shards()}) // the client went away: nothing to do
}

// Shards that this worker owns now, in order.
func (s *Service) Shards() []ShardStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]ShardStatus, 0, len(s.status))
	for _, st := range s.status {
		out = append(out, st)
	}
	slices.SortFunc(out, func(a, b ShardStatus) int {
		if a.Shard < b.Shard {
			return -1
		}
		return 1
	})
	return out
}

func (s *Service) enter(o *owner) {
	s.m.shards.Inc()
	s.note(o)
}

func (s *Service) leave(o *owner) {
	s.m.shards.Dec()
	id := o.grant.Shard.String()
	s.m.pending.DeleteLabelValues(id)
	s.m.lag.DeleteLabelValues(id)
	s.m.ordered.DeleteLabelValues(id)
	s.m.asides.DeleteLabelValues(id)
	s.m.behind.DeletePartialMatch(prometheus.Labels{"shard": id})
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.status, o.grant.Shard)
}

// room reports whether the shard may remember more batches: while all shards of the
// worker together have room, and up to the shard's share of it in any case, so that none
// waits for ever behind others.
func (s *Service) room(o *owner) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := len(o.log.batches)
	all := mine
	for id, st := range s.status {
		if id != o.grant.Shard {
			all += st.PendingBatches
		}
	}
	return all < s.cfg.Intake.MaxPending || mine < s.cfg.Intake.MaxPending/max(1, len(s.status))
}

// maxStatusHours of one shard in its status.
const maxStatusHours = 100

// note shows where the shard stands.
func (s *Service) note(o *owner) {
	id := o.grant.Shard.String()
	st := ShardStatus{
		Shard: id, Fence: o.grant.Fence, PendingBatches: len(o.log.batches), PendingHours: []string{},
		Aside: o.asideBatches(), AgentHours: len(o.aside.of), LeftOut: len(o.out), Shelved: o.log.shelved, PutAside: o.reader.Aside(),
	}
	for h, w := range o.log.hours {
		st.PendingHours = append(st.PendingHours, h.String())
		if w.stuck > 0 {
			st.Stuck += len(w.ids)
		}
	}
	for why, n := range map[string]int{"left_out": st.LeftOut, "stuck": st.Stuck, "shelved": st.Shelved, "segments": st.PutAside, "set_aside": st.Aside} {
		s.m.behind.WithLabelValues(id, why).Set(float64(n))
	}
	s.m.asides.WithLabelValues(id).Set(float64(st.AgentHours))
	slices.Sort(st.PendingHours)
	st.PendingHours = st.PendingHours[:min(len(st.PendingHours), maxStatusHours)]
	lag := time.Duration(0)
	if h, ok := o.log.oldest(); ok {
		lag = max(s.now().Sub(h.End()), 0)
	}
	s.m.pending.WithLabelValues(id).Set(float64(len(o.log.batches)))
	s.m.lag.WithLabelValues(id).Set(lag.Seconds())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status[o.grant.Shard] = st
}
