package objectstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/http1"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/notify"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3api"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
)

// Deps are what the service needs from its process.
type Deps struct {
	Telemetry *telemetry.Telemetry
	// Now is the clock for times that are stored or compared with signatures; nil is time.Now.
	Now func() time.Time
	// LeastPart is the least size of a part but the last, bytes; 0 is AWS's 5 MiB. Tests of many parts set less.
	LeastPart int64
}

// Service is the object store.
type Service struct {
	cfg     Config
	deps    Deps
	ready   chan struct{}
	addr    atomic.Pointer[string]
	admin   atomic.Pointer[string]
	started atomic.Bool
	isReady sync.Once
	keys    *seal.Keys // read once by Run
	drives  drives
	// poisoned are places of which an fsync failed in this process. What the kernel says of them later proves nothing, so they are
	// not opened again before the next process.
	poisoned map[string]error
}

// New checks the settings. Nothing is opened before Run.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("objectstore: %w", err)
	}
	if deps.Telemetry == nil {
		deps.Telemetry = telemetry.Discard()
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	return &Service{cfg: cfg, deps: deps, ready: make(chan struct{})}, nil
}

// Ready is closed when the service accepts requests.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// Addr is the host:port of the S3 API; valid after Ready.
func (s *Service) Addr() string { return load(&s.addr) }

// AdminAddr is the host:port of metrics and health; empty without one, valid after Ready.
func (s *Service) AdminAddr() string { return load(&s.admin) }

func load(p *atomic.Pointer[string]) string {
	if v := p.Load(); v != nil {
		return *v
	}
	return ""
}

// Run opens the store and serves until ctx ends. Then it drains requests, makes the index durable
// and closes the store.
func (s *Service) Run(ctx context.Context) (err error) {
	if s.started.Swap(true) {
		return errors.New("objectstore: Run was called before")
	}
	m, err := newMetrics(s.deps.Telemetry.Registry)
	if err != nil {
		return fmt.Errorf("objectstore: %w", err)
	}
	if s.keys, err = s.cfg.Encryption.load(ctx); err != nil {
		return fmt.Errorf("objectstore: %w", err)
	}
	if len(s.cfg.Mirrors) > 0 {
		if err := s.deps.Telemetry.Registry.Register(newDriveMetrics(s.drives.status)); err != nil {
			return fmt.Errorf("objectstore: %w", err)
		}
	}
	for {
		// A damaged index is rebuilt from the log by opening the store again, without an
		// operator. Clients see refused connections meanwhile, on the same address afterwards.
		err := s.open(ctx, m)
		if !errors.Is(err, engine.ErrIndexDamaged) || ctx.Err() != nil {
			return err
		}
		s.deps.Telemetry.Log.Error("the index is damaged; opening the store again to rebuild it", "error", err)
	}
}

// open opens the engine and serves until ctx ends, or until the index is found damaged.
func (s *Service) open(ctx context.Context, m *metrics) (err error) {
	opt := engine.Options{
		Dir: s.cfg.Dir, Log: s.deps.Telemetry.Log,
		SegmentBytes: int64(s.cfg.Segment), InlineBytes: int64(s.cfg.InlineObject), ReclaimBelow: s.cfg.ReclaimBelow,
		Reserve: int64(s.cfg.Reserve), Observe: m.batch, Keys: s.keys, Now: s.deps.Now,
	}
	// 0 turns reclaiming off in the settings, but is the default in the engine's options.
	if s.cfg.ReclaimBelow == 0 {
		opt.ReclaimBelow = -1
	}
	drives, err := s.openDrives(&opt)
	if err != nil {
		return fmt.Errorf("objectstore: %w", err)
	}
	defer func() { err = errors.Join(err, s.closeDrives(drives)) }()
	places, err := s.cfg.openPlaces(ctx, opt.FS, s.deps.Telemetry.Log, func() { m.fsyncs.Add(1) }, false, &m.keeping, s.poisoned)
	if err != nil {
		return fmt.Errorf("objectstore: %w", err)
	}
	if places != nil {
		opt.Bodies = places
		defer func() { err = errors.Join(err, s.closePlaces(places)) }()
		m.places.Store(places)
		defer m.places.Store(nil)
	}
	eng, err := engine.Open(opt)
	if err != nil {
		return fmt.Errorf("objectstore: %w", err)
	}
	m.engine.Store(eng)
	s.sayMissingKeys(eng)
	defer func() {
		m.fsyncs.Add(eng.Stats().Fsyncs)
		m.engine.Store(nil)
		if cerr := eng.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("objectstore: close: %w", cerr)
		}
	}()
	if places != nil {
		dir := s.cfg.Dir
		if drives != nil {
			dir = filepath.Dir(opt.IndexDir)
		}
		if err := m.keeping.open(ctx, s, dir, eng, places); err != nil {
			return fmt.Errorf("objectstore: %w", err)
		}
		defer func() { err = errors.Join(err, m.keeping.close()) }()
	}
	if err := s.serve(ctx, eng, m); err != nil {
		return fmt.Errorf("objectstore: %w", err)
	}
	return nil
}

// closePlaces gives the places back, and remembers those that were poisoned.
func (s *Service) closePlaces(places *spread.Store) error {
	for _, p := range places.Stats(context.Background()).Places {
		if errors.Is(p.Err, place.ErrPoisoned) {
			if s.poisoned == nil {
				s.poisoned = map[string]error{}
			}
			s.poisoned[p.Name] = p.Err
		}
	}
	return places.Close()
}

// serve runs the loops. The committer ends last, because requests that are being drained still
// write.
func (s *Service) serve(ctx context.Context, eng *engine.Engine, m *metrics) error {
	senders, err := s.senders(eng, m)
	if err != nil {
		return err
	}
	secure, err := s.cfg.TLS.config()
	if err != nil {
		return err
	}
	users, err := s.cfg.users()
	if err != nil {
		return err
	}
	eng.SetFloor(s.floor(eng, senders))
	l, err := net.Listen("tcp", previousOr(s.Addr(), s.cfg.Listen))
	if err != nil {
		return err
	}
	defer l.Close() // closes it when a loop could not start; a second close is harmless
	// The committer has a context of its own, so that it outlives the service's.
	committer := run.NewGroup(context.WithoutCancel(ctx))
	cctx, stop := context.WithCancel(committer.Context())
	defer stop()
	committer.Go("committer", func(context.Context) error { return eng.Run(cctx) })
	err = s.makeBuckets(ctx, eng)
	if err == nil {
		err = s.setQuotas(ctx, eng)
	}
	if err == nil {
		g := run.NewGroup(ctx)
		err = s.start(g, l, secure, users, eng, m, senders)
		err = errors.Join(err, g.Wait())
	}
	stop()
	return errors.Join(err, committer.Wait())
}

// start starts the loops that end with the service's context.
func (s *Service) start(g *run.Group, l net.Listener, secure *tls.Config, users func() map[string]s3api.User, eng *engine.Engine, m *metrics, senders []*notify.Sender) error {
	if s.cfg.AdminListen != "" {
		ac := web.DefaultHTTP(previousOr(s.AdminAddr(), s.cfg.AdminListen))
		ac.Hosts = s.cfg.AdminHosts
		al, err := ac.Open(context.Background())
		if err != nil {
			// Reported through the group, so that serve has one place that waits and joins errors.
			g.Go("admin", func(context.Context) error { return err })
			return nil
		}
		a := al.Addr().String()
		s.admin.Store(&a)
		mux := web.NewMux("lightmetrics objectstore, admin paths", telemetry.Version(), nil)
		state := run.NewReadiness(s.deps.Telemetry.Log)
		state.Check("log", func() error { return ready(eng) })
		telemetry.Admin{Telemetry: s.deps.Telemetry, Ready: state, Config: s.cfg, Pprof: s.cfg.Pprof}.Register(mux)
		mux.Handle(web.Route{Pattern: "GET /damage", About: "what was found damaged, with the keys", Roles: []web.Role{web.RoleOperator},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeDamage(w, eng) })})
		mux.Handle(s.statusRoute(eng, m))
		mux.Handle(s.keysRoute(eng))
		for _, r := range quotaRoutes(eng) {
			mux.Handle(r)
		}
		mux.Handle(web.Route{Pattern: "GET /drives", About: "the drives that keep the log: which are in sync, and what is copied", Roles: []web.Role{web.RoleOperator},
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { web.WriteJSON(w, http.StatusOK, s.drives.status()) })})
		if len(s.cfg.Places) > 0 {
			m.keeping.register(mux)
		}
		g.Go("admin", func(ctx context.Context) error { return web.ServeHTTP(ctx, ac.Server(mux), al, s.cfg.Drain) })
	}
	api := s3api.New(s3api.Options{
		Engine: eng, Users: users, Log: s.deps.Telemetry.Log, Now: s.deps.Now,
		LeastPart: s.deps.LeastPart, Region: s.cfg.Region, Domain: s.cfg.Domain, MaxObjectBytes: int64(s.cfg.MaxObject),
		MaxRequests: s.cfg.MaxRequests, MaxInFlightBytes: int64(s.cfg.MaxInFlight), IdleTimeout: s.cfg.BodyIdle,
		OnlyRegion: s.cfg.OnlyRegion, BlockPublicAccess: s.cfg.BlockPublicAccess, MatchAbsent412: s.cfg.IfMatchAbsent412, EncryptedAtRest: s.cfg.EncryptedAtRest, Observe: m.request, SlowBody: m.slowBodies.Inc,
	})
	front := &http1.Server{Handler: api, Log: s.deps.Telemetry.Log, TLS: secure,
		MaxConns: s.cfg.MaxConnections, Full: s3err.SlowDown.With("The server has as many connections as it takes.").Whole(),
		Refused: m.connsRefused.Inc, Displaced: m.connsDisplaced.Inc}
	m.front.Store(front)
	addr := l.Addr().String()
	s.addr.Store(&addr)
	g.Go("s3", func(ctx context.Context) error { return front.Serve(ctx, l, s.cfg.Drain) })
	g.Go("index", func(ctx context.Context) error {
		select {
		case <-eng.IndexDamaged():
			return engine.ErrIndexDamaged
		case <-ctx.Done():
			return nil
		}
	})
	for _, sender := range senders {
		g.Go("webhook", sender.Run)
	}
	if k := m.keeping.get(); k != nil {
		g.Go("redundancy", k.Run)
	}
	if s.cfg.LifecycleInterval > 0 {
		g.Go("lifecycle", func(ctx context.Context) error { return s.runLifecycle(ctx, eng, m) })
	}
	s.watchDrives(g, eng)
	g.Go("reclaim", func(ctx context.Context) error { return s.keepLog(ctx, eng, m) })
	g.Go("reseal", func(ctx context.Context) error { return s.reseal(ctx, eng, m) })
	s.deps.Telemetry.Log.Info("object store is ready", "s3", s.cfg.scheme()+"://"+addr, "admin", s.AdminAddr(), "dir", s.cfg.Dir)
	s.isReady.Do(func() { close(s.ready) })
	return nil
}

// previousOr gives the address that an earlier run of open listened on, so that clients find the
// store again when the configured port is 0.
func previousOr(before, configured string) string {
	if before != "" {
		return before
	}
	return configured
}

// ready gives the reasons why the store cannot take objects or decide conditions; nil when it can.
func ready(eng *engine.Engine) error {
	return errors.Join(eng.Err(), eng.CheckSpace(), eng.Uncertain())
}

// writeDamage answers with the damaged places as JSON.
func writeDamage(w http.ResponseWriter, eng *engine.Engine) {
	out := struct {
		Uncertain bool            `json:"uncertain"`
		Damages   []engine.Damage `json:"damages"`
	}{eng.Uncertain() != nil, eng.Damages()}
	if out.Damages == nil {
		out.Damages = []engine.Damage{}
	}
	web.WriteJSON(w, http.StatusOK, out)
}

// sealInterval is the time between two scans for closed segments without a footer.
const sealInterval = 5 * time.Second

// keepLog writes the footers of closed segments, offers them to be coded, and reclaims segments that hold little. One
// goroutine does all, since the engine allows none to run beside the others. Failures are
// logged and tried again at the next tick.
func (s *Service) keepLog(ctx context.Context, eng *engine.Engine, m *metrics) error {
	seal, reclaim := time.NewTicker(sealInterval), time.NewTicker(s.cfg.ReclaimInterval)
	defer seal.Stop()
	sweep := time.NewTicker(sweepInterval)
	defer reclaim.Stop()
	defer sweep.Stop()
	for {
		due, swept := false, false
		select {
		case <-ctx.Done():
			return nil
		case <-seal.C:
		case <-reclaim.C:
			due = s.cfg.ReclaimBelow > 0
		case <-sweep.C:
			swept = true
		}
		// Footers need space and only speed up a rebuild, so a full disk gets none.
		for more := true; more && ctx.Err() == nil && eng.CheckSpace() == nil; {
			var err error
			if more, err = eng.Seal(); err != nil {
				s.deps.Telemetry.Log.Warn("a segment's footer could not be written; the next rebuild of the index reads the segment", "error", err)
				break
			}
		}
		if eng.Err() == nil {
			s.offerSegments(ctx, eng, m)
		}
		if swept && eng.Err() == nil {
			s.sweepUploads(ctx, eng)
		}
		for due && ctx.Err() == nil && eng.Err() == nil {
			n, err := eng.Reclaim(ctx)
			if err != nil && ctx.Err() == nil {
				s.deps.Telemetry.Log.Error("space could not be reclaimed", "error", err)
			}
			if n == 0 || err != nil {
				break
			}
			m.reclaimed.Add(float64(n))
			s.deps.Telemetry.Log.Info("reclaimed a log segment", "bytes", n)
		}
	}
}

// sweepInterval is the time between two scans for uploads that nobody will complete.
const sweepInterval = 5 * time.Minute

// sweepUploads aborts old uploads and removes what crashes have left of others.
func (s *Service) sweepUploads(ctx context.Context, eng *engine.Engine) {
	var olderThan time.Time
	if s.cfg.AbortUploadsAfter > 0 {
		olderThan = s.deps.Now().Add(-s.cfg.AbortUploadsAfter)
	}
	for _, b := range eng.Buckets() {
		n, err := eng.SweepUploads(ctx, b.Name, olderThan)
		if err != nil && ctx.Err() == nil {
			s.deps.Telemetry.Log.Error("uploads could not be cleaned up", "bucket", b.Name, "error", err)
		}
		if n > 0 {
			s.deps.Telemetry.Log.Info("removed uploads that nobody completed", "bucket", b.Name, "uploads", n)
		}
	}
}

func (s *Service) makeBuckets(ctx context.Context, eng *engine.Engine) error {
	for _, b := range s.cfg.Buckets {
		err := eng.CreateBucket(ctx, b, s.deps.Now())
		switch {
		case errors.Is(err, engine.ErrFull):
			// A store on a full disk must start, so that objects can be deleted.
			s.deps.Telemetry.Log.Error("a bucket could not be created", "bucket", b, "error", err)
		case err != nil && !errors.Is(err, engine.ErrBucketExists):
			return err
		}
	}
	return nil
}

func (s *Service) senders(eng *engine.Engine, m *metrics) ([]*notify.Sender, error) {
	var out []*notify.Sender
	for _, h := range s.cfg.Webhooks {
		name := h.shown()
		m.hook(name)
		sender, err := notify.New(notify.Options{
			Engine: eng, FS: eng.FS(), Dir: "webhooks", Region: s.cfg.Region, Log: s.deps.Telemetry.Log,
			Client: notify.Client(h.TLS),
			Hook: notify.Hook{
				ID: h.id(), Name: name, URL: h.URL.Reveal(), Bucket: h.Bucket, Prefix: h.Prefix, Events: h.Events, Authorization: h.Authorization.Reveal(),
			},
			Observe: m.post(name),
			Missed:  func(n uint64) { m.webhookLost.WithLabelValues(name).Add(float64(n)) },
		})
		if err != nil {
			return nil, err
		}
		out = append(out, sender)
	}
	return out, nil
}

// floor gives the first sequence that a webhook still needs. It never keeps more than
// webhook_backlog of the log: beyond that a webhook that does not answer loses events.
func (s *Service) floor(eng *engine.Engine, senders []*notify.Sender) func() uint64 {
	return func() uint64 {
		floor := ^uint64(0)
		for _, sender := range senders {
			floor = min(floor, sender.Next())
		}
		return max(floor, eng.SeqBefore(int64(s.cfg.WebhookBacklog)))
	}
}
