// Package ingest is the collector: it authenticates senders, validates frames and
// accepts batches. docs/protocol/stream.md is its protocol, docs/guide/ingest.md its settings.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/commit"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// Deps are the dependencies of a collector.
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

	cfg       Config
	tel       *telemetry.Telemetry
	tracer    trace.Tracer
	now       func() time.Time
	store     objstore.Store
	metrics   *metrics
	errlog    *errlog
	buffers   *buffers
	gate      *gate
	agents    *agents
	clock     *storeClock
	notify    *notifier
	hub       *hub
	recent    *recentFrames
	abandoned *abandoned
	clashes   *noted
	parked    *noted
	workers   *workers

	// live are the present limits. Reload replaces those that are only compared with; sizes of pools stay.
	live     atomic.Pointer[Limits]
	decoding *decoding
	room     *semaphore.Weighted
	// bodies bounds the part of room that HTTP bodies hold while they are being received.
	bodies     *semaphore.Weighted
	bodiesRoom int64
	inFlight   atomic.Int64
	streams    atomic.Int64
	requests   atomic.Int64
	// framesCalls counts calls of ReadFrames.
	framesCalls atomic.Int64

	// resolutions are what operators decided about conflicts and senders, and resolutionsRead when all of them
	// were read, Unix nanoseconds.
	resolutions     *resolution.Log
	resolutionsRead atomic.Int64
	// claimer is the identity linearizer of acceptance global, else nil.
	claimer     *claimer
	closeClaims func() error
	// condemned are the names that garbage collection has condemned; nil while markers are always read.
	condemned atomic.Pointer[condemnedNames]
	// reread is when a quarantined sender last had the log read, Unix nanoseconds.
	reread atomic.Int64

	state       atomic.Pointer[state]
	found       atomic.Pointer[finding] // of the last probe that passed the store's semantics
	last        *authority              // only used by keepQualified
	spooled     chan *spool.Spool
	spool       atomic.Pointer[spool.Spool] // nil before it is open, and without local_spool
	journal     *commit.Committer           // only used by keepQualified
	journalOf   string                      // the authority of journal
	committing  chan *commit.Committer
	writing     atomic.Pointer[commit.Committer]
	reprobe     chan struct{}
	collectorID string

	callsMu sync.Mutex
	calls   sync.WaitGroup
	drain   chan struct{}   // closed when the service stops accepting calls
	hard    context.Context // ends when the drain timeout is over
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
		abandoned: newAbandoned(), clashes: newNoted(), parked: newNoted(),
		reprobe: make(chan struct{}, 1), spooled: make(chan *spool.Spool, 1), drain: make(chan struct{}),
	}
	s.committing = make(chan *commit.Committer, 1)
	s.hub = newHub(func() string { return s.collectorID }, s.unlanded)
	s.recent = newRecentFrames(int64(cfg.Journal.FramesMemory), s.buffers.put)
	s.clock = &storeClock{Store: d.Store, now: d.Now}
	s.bodiesRoom = int64(max(l.InFlightBytes/2, l.FrameBytes))
	s.bodies = semaphore.NewWeighted(s.bodiesRoom)
	s.hard, s.kill = context.WithCancel(context.Background())
	s.workers = newWorkers(s.hard.Done())
	s.live.Store(&l)
	s.state.Store(&state{err: errStarting})
	var err error
	if s.metrics, err = newMetrics(d.Telemetry.Registry, s); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	if s.notify, err = newNotifier(cfg.Notify, d.Telemetry.Log, s.metrics); err != nil {
		return nil, fmt.Errorf("ingest: %w", err)
	}
	closeClaims := func() error { return nil }
	if accept.Mode(cfg.Acceptance) == accept.ModeGlobal {
		m := newGlobalMetrics()
		var conn *grpc.ClientConn
		if s.claimer, conn, err = dialClaims(cfg, d.Now, m); err != nil {
			return nil, fmt.Errorf("ingest: %w", err)
		}
		closeClaims = conn.Close
		m.register(d.Telemetry.Registry, s.claimer)
	}
	s.closeClaims = closeClaims
	s.Server, err = service.New("ingest", cfg.Base, cfg, d.Telemetry, service.Options{
		GRPC: s.grpcOptions(), GRPCListener: s.gate.listener, OnCaller: s.tagConnection,
		JSON: []runtime.ServeMuxOption{runtime.WithMarshalerOption(frame.MediaType, frameMarshaler{})},
	})
	if err != nil {
		return nil, err
	}
	// From here on every create also compares the clocks.
	s.store = s.clock
	s.resolutions = resolution.NewLog(s.store, run.Each(resolution.Ahead))
	s.Readiness().Check("submissions", s.NotReady)
	s.Readiness().Check("journal", s.journalFailing)
	if accept.Mode(cfg.Acceptance) != accept.ModeLocalSpool { // with a local spool the collector accepts without the store
		s.Probe("store", cfg.bucket().Probe(s.store))
	}
	s.OnListening(s.begin)
	s.OnStop(s.startDrain)
	s.Go("qualify", s.keepQualified)
	s.Go("resolutions", s.followResolutions)
	s.Go("epochs", s.followEpochs)
	s.Handle(web.Route{Pattern: "GET /status", About: "the authority, the bucket's policy, the last probe", Roles: sees, Handler: http.HandlerFunc(s.page)})
	return s, errors.Join(s.Register(s.api()), s.Register(service.API{
		Desc: &journalv1.JournalService_ServiceDesc, Impl: journalServer{s: s}, Access: journalAccess, Errors: failures,
	}))
}

// streamWindow is the flow-control window in bytes of a stream that is not being read, the
// smallest that gRPC allows. A fixed one disables gRPC's estimation, which would grow windows to 16 MiB.
const streamWindow = 64 << 10

func (s *Service) grpcOptions() []grpc.ServerOption {
	l := s.cfg.Limits
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec(s.buffers)),
		grpc.StatsHandler(gateStats{s.gate}),
		// Frames somewhat over the limit are read, so that they are refused one by one. gRPC would end the whole stream.
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

// tagConnection tells the gate which sender a connection belongs to. Without credentials the
// sender stays the address, because all callers have the same principal.
func (s *Service) tagConnection(ctx context.Context, p rpc.Principal) {
	key := ""
	if s.cfg.Auth.Mode != rpc.AuthNone {
		key = "principal " + p.Name
	}
	connOf(ctx).authenticated(key)
}

// Reload applies the limits of new settings, which the caller has validated.
func (s *Service) Reload(c Config) {
	s.live.Store(&c.Limits)
	s.agents.setRate(c.Limits.AgentBatchesPerSec, c.Limits.AgentBatchesBurst)
}

// limits returns the present limits.
func (s *Service) limits() *Limits { return s.live.Load() }

// Run serves until ctx ends; then it stops reading, finishes what was read and
// returns nil. A bucket of another authority ends it with an error.
func (s *Service) Run(ctx context.Context) (err error) {
	defer s.kill()
	defer func() { err = errors.Join(err, s.notify.close(), s.closeClaims()) }()
	// The background jobs outlive the drain, so that the last accepted batches are notified, too.
	side, stopSide := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSide()
	background := run.NewGroup(side)
	s.notify.start(background)
	background.Go("land", s.land)
	background.Go("end runs", s.endRuns)
	background.Go("report orphans", s.reportOrphans)
	if s.claimer != nil {
		background.Go("settle claims", s.claimer.settle)
	}
	// The journal outlives even those: the spool lands through it.
	last, stopLast := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLast()
	journalling := run.NewGroup(last)
	journalling.Go("journal", s.writeJournal)
	err = s.Server.Run(ctx)
	s.kill() // ends the calls that the drain timeout was too short for
	s.calls.Wait()
	stopSide()
	err = errors.Join(err, background.Wait())
	stopLast()
	return errors.Join(err, journalling.Wait())
}

// begin sets the collector's id once it listens, because the default contains the port.
func (s *Service) begin(context.Context) (err error) {
	if s.collectorID, err = s.name(); err != nil {
		return err
	}
	failpoint.Hit("ingest.start.ready.before")
	s.tel.Log.Info("collector listens", "collector_id", s.collectorID, "acceptance", s.cfg.Acceptance)
	return nil
}

// startDrain makes the service refuse new calls as soon as it is to stop.
func (s *Service) startDrain() {
	s.callsMu.Lock()
	close(s.drain)
	s.callsMu.Unlock()
	s.tel.Log.Info("collector drains", "in_flight_bytes", s.inFlight.Load(), "streams", s.streams.Load())
	time.AfterFunc(s.cfg.DrainTimeout, s.kill)
}

// name is the collector's id: the configured one, or the host name with the gRPC port.
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
