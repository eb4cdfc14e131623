// Package coordinator is the service that gives every shard one owner: it keeps
// workers' sessions and, on the one coordinator that leads, assigns and grants shards.
package coordinator

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// Config of a coordinator. docs/guide/coordinator.md explains every setting.
type Config struct {
	service.Base // its ID names this coordinator in the election

	// Store counts the terms of leaders; without a bucket etcd alone does.
	Store s3.Config `koanf:"store" needs:"store.bucket"`

	Etcd       etcd.Config     `koanf:"etcd"`
	Lease      LeaseConfig     `koanf:"lease"`
	Rebalance  RebalanceConfig `koanf:"rebalance"`
	MaxStreams int             `koanf:"max_streams" help:"most workers that this coordinator serves"`
}

// LeaseConfig are the times to live.
type LeaseConfig struct {
	Worker time.Duration `koanf:"worker" help:"a worker that is silent for so long loses its shards; whole seconds"`
	Leader time.Duration `koanf:"leader" help:"how long nobody assigns after the leading coordinator died; whole seconds"`
}

// RebalanceConfig says how long shards do not move after the workers have changed.
type RebalanceConfig struct {
	QuietPeriod time.Duration `koanf:"quiet_period" help:"shards move when no worker came or went for so long; a drain does not wait"`
	MaxDelay    time.Duration `koanf:"max_delay" help:"they move after so long at the latest, while workers keep coming and going"`
}

// DefaultConfig listens on loopback and runs a single etcd member.
func DefaultConfig() Config {
	return Config{
		Base: service.DefaultBase("127.0.0.1:4780", "127.0.0.1:4781"), Store: s3.DefaultConfig(),
		Etcd:       etcd.DefaultConfig(),
		Lease:      LeaseConfig{Worker: 10 * time.Second, Leader: 5 * time.Second},
		Rebalance:  RebalanceConfig{QuietPeriod: 2 * time.Second, MaxDelay: 10 * time.Second},
		MaxStreams: 1024,
	}
}

// Validate checks ranges.
func (c Config) Validate() error {
	var errs []error
	if c.GRPC.Listen == "" {
		errs = append(errs, errors.New("grpc.listen: is needed"))
	}
	if c.Store.Bucket != "" {
		errs = append(errs, c.Store.Validate())
	}
	for name, d := range map[string]time.Duration{"lease.worker": c.Lease.Worker, "lease.leader": c.Lease.Leader} {
		if d < time.Second || d > 10*time.Minute || d%time.Second != 0 {
			errs = append(errs, fmt.Errorf("%s: must be 1s to 10m, in whole seconds", name))
		}
	}
	if c.MaxStreams < 1 {
		errs = append(errs, errors.New("max_streams: must be greater than 0"))
	}
	return errors.Join(append(errs, c.rebalanceDelay().Validate(), c.Etcd.Validate(), c.Base.Validate())...)
}

func (c Config) rebalanceDelay() ownership.RebalanceDelay {
	return ownership.RebalanceDelay{QuietPeriod: c.Rebalance.QuietPeriod, MaxDelay: c.Rebalance.MaxDelay}
}
