// Package ingest is the collector: it authenticates senders, validates frames and
// accepts batches. docs/protocol/stream.md is its protocol, docs/guide/ingest.md its settings.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// Deps are what a collector works with.
type Deps struct {
	// Store is the acceptance authority's part of a bucket, its prefix applied.
	Store     objstore.Store
	Telemetry *telemetry.Telemetry
	// Now is the clock of manifests; nil is time.Now.
	Now func() time.Time
}

// Service is one collector.
type Service struct {
	*service.Server
	ingestv1.UnimplementedIngestServiceServer

	cfg     Config
	tel     *telemetry.Telemetry
	tracer  trace.Tracer
	now     func() time.Time
	store   objstore.Store
	metrics *metrics
	errlog  *errlog
	buffers *buffers
	gate    *gate
	agents  *agents
	clock   *storeClock
	notify  *notifier

	// live are the limits in force: Reload exchanges those that need nothing but a comparison.
	live     atomic.Pointer[Limits]
	decoding *decoding
	room     *semaphore.Weighted
	// bodies bounds what of room is promised to HTTP bodies that are not here yet.
	bodies     *semaphore.Weighted
	bodiesRoom int64
	inFlight   atomic.Int64
	streams    atomic.Int64
	requests   atomic.Int64

	state       atomic.Pointer[state]
	last        *authority // of keepQualified only
	spooled     chan *spool.Spool
	reprobe     chan struct{}
	collectorID string

	callsMu sync.Mutex
	calls   sync.WaitGroup
	drain   chan struct{}   // closed when the service stops taking anything
	hard    context.Context // ends when the drain's time is over
	kill    context.CancelFunc
}

// New makes a collector; nothing listens before Run.
func New(cfg Config, d Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	if d.Store == nil || d.Telemetry == nil {
		return nil, errors.New("ingest: store and telemetry are needed")
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	l := cfg.Limits
	s := &Service{
		cfg: cfg, tel: d.Telemetry, now: d.Now,
		tracer: d.Telemetry.Tracer.Tracer("lightmetrics.dev/lightmetrics/services/ingest"),
		errlog: newErrlog(d.Telemetry.Log, d.Now), buffers: &buffers{}, gate: newGate(l.Receivers),
		agents:   newAgents(l, d.Now),
		decoding: newDecoding(l), room: semaphore.NewWeighted(int64(l.InFlightBytes)),
		reprobe: make(chan struct{}, 1), spooled: make(chan *spool.Spool, 1), drain: make(chan struct{}),
	}
	s.clock = &storeClock{Store: d.Store, now: d.Now}
	s.bodiesRoom = int64(max(l.InFlightBytes/2, l.FrameBytes))
	s.bodies = semaphore.NewWeighted(s.bodiesRoom)
	s.hard, s.kill = context.WithCancel(context.Background())
	s.live.Store(&l)
	s.state.Store(&state{err: errStarting})
	var err error
	if s.metrics, err = newMetrics(d.Telemetry.Registry, s); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	if s.notify, err = newNotifier(cfg.Notify, d.Telemetry.Log, s.metrics); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	s.Server, err = service.New("ingest", cfg.Base, cfg, d.Telemetry, service.Options{
		GRPC: s.grpcOptions(), GRPCListener: s.gate.listener, OnCaller: s.introduce,
		JSON: []runtime.ServeMuxOption{runtime.WithMarshalerOption(frame.MediaType, frameMarshaler{})},
	})
	if err != nil {
		return nil, err
	}
	s.store = s.clock
	s.Readiness().Check("submissions", s.NotReady)
	if accept.Mode(cfg.Acceptance) == accept.ModeS3Manifest { // a local spool is there to do without the store
		s.Probe("store", cfg.Probe(s.store))
	}
	s.OnListening(s.begin)
	s.OnStop(s.turnAway)
	s.Go("qualify", s.keepQualified)
	return s, s.Register(s.api())
}

// streamWindow is the flow-control window of a stream that is not being read, the
// least that gRPC takes. A fixed one turns off its estimation, which grows windows to 16 MiB.
const streamWindow = 64 << 10

func (s *Service) grpcOptions() []grpc.ServerOption {
	l := s.cfg.Limits
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(s.buffers)),
		grpc.StatsHandler(gateStats{s.gate}),
		// Frames somewhat over the limit are read, so that they can be refused one by one.
		grpc.MaxRecvMsgSize(2*l.FrameBytes.Int() + 4096),
		grpc.MaxSendMsgSize(1 << 20),
		grpc.MaxConcurrentStreams(uint32(l.StreamsPerConnection)),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(1 << 20),
		grpc.ReadBufferSize(16 << 10),
		grpc.WriteBufferSize(16 << 10),
		grpc.WaitForHandlers(true),
	}
}

// introduce tells the gate whose connection it is. Without credentials that tell senders
// apart, it stays its address's.
func (s *Service) introduce(ctx context.Context, p rpc.Principal) {
	key := ""
	if s.cfg.Auth.Mode != rpc.AuthNone {
		key = "principal " + p.Name
	}
	connOf(ctx).introduced(key)
}

// Reload takes the limits of new settings, which are valid.
func (s *Service) Reload(c Config) {
	s.live.Store(&c.Limits)
	s.agents.setRate(c.Limits.AgentBatchesPerSec, c.Limits.AgentBatchesBurst)
}

// limits are those in force now.
func (s *Service) limits() *Limits { return s.live.Load() }

// Run serves until ctx ends; then it stops reading, finishes what was read and
// returns nil. A bucket of another authority ends it with an error.
func (s *Service) Run(ctx context.Context) (err error) {
	defer s.kill()
	defer func() { err = errors.Join(err, s.notify.close()) }()
	// The side jobs outlive the drain, so that what is accepted last is notified too.
	side, stopSide := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSide()
	background := run.NewGroup(side)
	s.notify.start(background)
	background.Go("land", s.land)
	err = s.Server.Run(ctx)
	s.kill() // nothing is left but what the drain's time did not suffice for
	s.calls.Wait()
	stopSide()
	return errors.Join(err, background.Wait())
}

// begin names the collector, once it listens.
func (s *Service) begin(context.Context) (err error) {
	if s.collectorID, err = s.name(); err != nil {
		return err
	}
	failpoint.Hit("ingest.start.ready.before")
	s.tel.Log.Info("collector listens", "collector_id", s.collectorID, "acceptance", s.cfg.Acceptance)
	return nil
}

// turnAway turns senders away as soon as the service is to end.
func (s *Service) turnAway() {
	s.callsMu.Lock()
	close(s.drain)
	s.callsMu.Unlock()
	s.tel.Log.Info("collector drains", "in_flight_bytes", s.inFlight.Load(), "streams", s.streams.Load())
	time.AfterFunc(s.cfg.DrainTimeout, s.kill)
}

// name is the collector's id: configured, or the host with the gRPC port.
func (s *Service) name() (string, error) {
	if s.cfg.ID != "" {
		return s.cfg.ID, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(s.GRPCAddr())
	return host + ":" + port, err
}
