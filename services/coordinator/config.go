// Package coordinator is the service that gives every shard one owner: it keeps
// workers' sessions and, on the one coordinator that leads, assigns and grants shards.
package coordinator

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/web"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// Config of a coordinator. docs/guide/coordinator.md explains every setting.
type Config struct {
	HTTP  web.HTTPConfig `koanf:"http"`
	GRPC  web.GRPCConfig `koanf:"grpc"`
	TLS   rpc.ServerTLS  `koanf:"tls"`
	Auth  rpc.AuthConfig `koanf:"auth"`
	Pprof bool           `koanf:"pprof" help:"serve /debug/pprof/"`

	// ID names this coordinator in the election; "" is a random one.
	ID           string        `koanf:"id" help:"name of this coordinator; empty is a random one"`
	DrainTimeout time.Duration `koanf:"drain_timeout" help:"longest time that a shutdown waits for calls"`
	Etcd         etcd.Config   `koanf:"etcd"`
	Lease        LeaseConfig   `koanf:"lease"`
	Settle       SettleConfig  `koanf:"settle"`
	MaxStreams   int           `koanf:"max_streams" help:"most workers that this coordinator serves"`
}

// LeaseConfig are the times to live.
type LeaseConfig struct {
	Worker time.Duration `koanf:"worker" help:"a worker that is silent for so long loses its shards; whole seconds"`
	Leader time.Duration `koanf:"leader" help:"how long nobody assigns after the leading coordinator died; whole seconds"`
}

// SettleConfig is how long workers must stay the same before shards move.
type SettleConfig struct {
	Quiet time.Duration `koanf:"quiet" help:"shards move when no worker came or went for so long; a drain does not wait"`
	Most  time.Duration `koanf:"most" help:"they move after so long at the latest, while workers keep coming and going"`
}

// DefaultConfig listens on loopback and runs a single etcd member.
func DefaultConfig() Config {
	return Config{
		HTTP: web.DefaultHTTP("127.0.0.1:4780"), GRPC: web.DefaultGRPC("127.0.0.1:4781"),
		Auth:         rpc.AuthConfig{Mode: rpc.AuthNone},
		DrainTimeout: 5 * time.Second,
		Etcd:         etcd.DefaultConfig(),
		Lease:        LeaseConfig{Worker: 10 * time.Second, Leader: 5 * time.Second},
		Settle:       SettleConfig{Quiet: 2 * time.Second, Most: 10 * time.Second},
		MaxStreams:   1024,
	}
}

// Validate checks ranges.
func (c Config) Validate() error {
	var errs []error
	if c.DrainTimeout <= 0 {
		errs = append(errs, errors.New("drain_timeout: must be greater than 0"))
	}
	for name, d := range map[string]time.Duration{"lease.worker": c.Lease.Worker, "lease.leader": c.Lease.Leader} {
		if d < time.Second || d > 10*time.Minute || d%time.Second != 0 {
			errs = append(errs, fmt.Errorf("%s: must be 1s to 10m, in whole seconds", name))
		}
	}
	if c.MaxStreams < 1 {
		errs = append(errs, errors.New("max_streams: must be greater than 0"))
	}
	return errors.Join(append(errs, c.settle().Validate(), c.Etcd.Validate(), c.HTTP.Validate(), c.GRPC.Validate(), c.TLS.Validate(), c.Auth.Validate(),
		rpc.CheckExposure(c.Auth, c.TLS, c.Pprof, map[string]string{"http.listen": c.HTTP.Listen, "grpc.listen": c.GRPC.Listen}))...)
}

func (c Config) settle() ownership.Settle {
	return ownership.Settle{Quiet: c.Settle.Quiet, Most: c.Settle.Most}
}
