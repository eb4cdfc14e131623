package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Causes of the end of a grant's context (context.Cause).
var (
	// ErrRevoked: the coordinator gives the shard to another worker when this one has stopped.
	ErrRevoked = errors.New("the shard was revoked")
	// ErrLost: the session has ended, or another worker has the shard already.
	ErrLost = errors.New("the shard was lost")
	// ErrLeaseExpired: no renewal was answered in time.
	ErrLeaseExpired = errors.New("the lease has expired")
	// ErrDraining: the worker shuts down.
	ErrDraining = errors.New("the worker shuts down")
)

// Config of a worker's session.
type Config struct {
	Addresses []string         `koanf:"addresses" help:"gRPC addresses of coordinators, host:port; the next one is tried when one fails" check:"address"`
	Client    rpc.ClientConfig `koanf:"client" needs:"addresses"`
	WorkerID  string           `koanf:"worker_id" help:"stable name of this worker: the same name gets the same shards again; empty is the host's name" needs:"addresses"`
	Advertise string           `koanf:"advertise" help:"where people reach this worker; shown in lists" needs:"addresses"`
	// DrainTimeout bounds the wait for ShardFunc to return when Run ends.
	DrainTimeout time.Duration `koanf:"drain_timeout" help:"longest time that a shutdown waits for work on shards" needs:"addresses"`
}

// DefaultConfig reaches a coordinator on loopback.
func DefaultConfig() Config {
	return Config{Addresses: []string{"127.0.0.1:4781"}, DrainTimeout: 10 * time.Second}
}

// Validate checks what New needs.
func (c Config) Validate() error {
	var errs []error
	if len(c.Addresses) == 0 {
		errs = append(errs, errors.New("addresses: at least one coordinator is needed"))
	}
	if c.DrainTimeout <= 0 {
		errs = append(errs, errors.New("drain_timeout: must be greater than 0"))
	}
	return errors.Join(errs...)
}

// Deps of an Owner.
type Deps struct {
	Log      *slog.Logger
	Registry prometheus.Registerer // nil registers nothing
}

// Grant is a shard that the worker owns.
type Grant struct {
	Shard shard.ID
	// Epoch grows with every grant of the shard.
	Epoch uint64
	// Fence grows too, over all coordinators and restarts; it becomes a part of what is published.
	Fence uint64

	lease *lease
	ctx   context.Context
}

// Check returns nil as long as the shard is the worker's as far as it can know. It checks the clock itself, so a
// worker that was paused finds out here before its context has ended. Call it before publishing.
func (g Grant) Check() error {
	// The cause and not ctx.Err: callers tell a shutdown from a lost shard.
	if err := context.Cause(g.ctx); err != nil {
		return err
	}
	return g.lease.check()
}

// Held returns nil as long as no other worker can have the shard as far as this one can know. That is longer than Check
// where the worker shuts down or the shard was asked back: it is granted on when its work has returned. What work writes
// for its successor goes by this.
func (g Grant) Held() error {
	err := context.Cause(g.ctx)
	if err != nil && !errors.Is(err, ErrDraining) && !errors.Is(err, ErrRevoked) {
		return err
	}
	return g.lease.check()
}

// ShardFunc works on a shard until ctx ends; context.Cause says why. If it returns before that, the shard is
// released, and soon granted to this worker or another.
type ShardFunc func(ctx context.Context, g Grant) error

// Owner is a worker's side of shard ownership: it keeps a session with a coordinator, runs
// the worker's function for every shard that it is granted, and stops it when the shard is
// taken away or the lease has ended by the worker's own clock.
//
// Ownership is for liveness only. A worker that was paused may continue for a moment after another took over, so
// everything that it publishes is a conditional create and carries the fence.
type Owner struct {
	cfg    Config
	kind   string
	shards uint32
	log    *slog.Logger
	m      *metrics

	session atomic.Pointer[lease] // nil without one
}

// NewOwner makes an owner. kind is "rollup"; shards is the
// number of shards of the kind, which must be that of all its workers.
func NewOwner(cfg Config, kind string, shards uint32, d Deps) (*Owner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("owner: %w", err)
	}
	if err := shard.CheckCount(shards); err != nil {
		return nil, fmt.Errorf("owner: %w", err)
	}
	if cfg.WorkerID == "" {
		var err error
		// A name that stays the same over restarts, so that the worker gets its shards back.
		if cfg.WorkerID, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("owner: worker_id: %w", err)
		}
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	return &Owner{cfg: cfg, kind: kind, shards: shards, log: d.Log.With("worker", cfg.WorkerID), m: newMetrics(d.Registry)}, nil
}

// ErrNoSession: no coordinator has given the worker a lease yet.
var ErrNoSession = errors.New("no session with a coordinator")

// Err is nil as long as the worker has a lease under which it may own shards.
func (o *Owner) Err() error {
	l := o.session.Load()
	if l == nil {
		return ErrNoSession
	}
	return l.check()
}

// WorkerID is the worker's name.
func (o *Owner) WorkerID() string { return o.cfg.WorkerID }
