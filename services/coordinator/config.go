// Package coordinator is the service that gives every shard one owner: it keeps
// workers' sessions and, on the one coordinator that leads, assigns and grants shards.
package coordinator

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

// Config of a coordinator. docs/guide/coordinator.md explains every setting.
type Config struct {
	service.Base // its ID names this coordinator in the election

	Region string `koanf:"region" help:"name of the region, of several, whose shards and pending work are here: workers that are bound to other regions may not touch them; empty: not compared"`

	// Store counts the terms of leaders; without a bucket etcd alone does.
	Store s3.Config `koanf:"store" needs:"store.bucket"`

	Etcd       etcd.Config     `koanf:"etcd"`
	Identity   IdentityConfig  `koanf:"identity"`
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

// IdentityConfig is the identity linearizer of several regions.
type IdentityConfig struct {
	Regions       []RegionConfig `koanf:"regions" help:"list in the file: name and store of each region, whose collectors accept with this coordinator; empty: no linearizer"`
	Prefix        string         `koanf:"prefix" help:"prefix of claims in etcd, the same in all regions; etcd.prefix, of shards and pending work, is each region's own" needs:"regions"`
	SettleHorizon time.Duration  `koanf:"settle_horizon" help:"claims that are settled for so long move into the regions' buckets, many of an agent's boot at once" needs:"regions"`
	Idle          time.Duration  `koanf:"idle" help:"a boot without batches for so long has no claims left, and etcd forgets it" needs:"regions"`
	MaxUnprepared uint64         `koanf:"max_unprepared" help:"a region that has accepted more batches which are not prepared (lmctl regions prepare) is not added: each becomes a claim" needs:"regions"`
	MaxClaims     uint64         `koanf:"max_claims" help:"most claims that a recovery enters into etcd, some 330 bytes each; it ends beyond them" needs:"regions"`
}

// RegionConfig is one region and its bucket.
type RegionConfig struct {
	Name  string    `koanf:"name" help:"1 to 64 of a-z, 0-9 and hyphen; not etcd"`
	Store s3.Config `koanf:"store"`
}

// store is the bucket of the region, with the default where a setting is not given.
func (r RegionConfig) store() s3.Config {
	c, d := r.Store, s3.DefaultConfig()
	c.Region = cmp.Or(c.Region, d.Region)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, d.RequestTimeout)
	c.Attempts = cmp.Or(c.Attempts, d.Attempts)
	c.MaxConnections = cmp.Or(c.MaxConnections, d.MaxConnections)
	return c
}

// maxClaims is what fits into 32 GiB, four times of what etcd advises.
const maxClaims = 100_000_000

// Validate checks names and buckets: two regions may not share one.
func (c IdentityConfig) Validate() error {
	var errs []error
	if len(c.Regions) > claims.MaxRegions {
		errs = append(errs, fmt.Errorf("identity.regions: %d, at most %d", len(c.Regions), claims.MaxRegions))
	}
	if !strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") {
		errs = append(errs, fmt.Errorf("identity.prefix %q: must begin with a slash, and not end in one", c.Prefix))
	}
	if c.SettleHorizon < time.Second || c.SettleHorizon > 30*24*time.Hour {
		errs = append(errs, errors.New("identity.settle_horizon: must be 1s to 720h"))
	}
	if c.Idle < c.SettleHorizon || c.Idle > 30*24*time.Hour {
		errs = append(errs, errors.New("identity.idle: must be settle_horizon to 720h"))
	}
	if c.MaxUnprepared < 1 || c.MaxClaims < c.MaxUnprepared || c.MaxClaims > maxClaims {
		errs = append(errs, fmt.Errorf("identity.max_unprepared, identity.max_claims: must be at least 1, at most %d, and the first no greater than the second", maxClaims))
	}
	seen := map[string]string{}
	for i, r := range c.Regions {
		at := fmt.Sprintf("identity.regions[%d]", i)
		if err := claims.Region(r.Name).Validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s.name: %w", at, err))
		}
		if r.Name == coordinator.NotARegion {
			errs = append(errs, fmt.Errorf("%s.name: %q is where lmctl identity shows claims, and no name of a region", at, r.Name))
		}
		s := r.store()
		place, err := s.Place()
		// The rules of the SDK say less of what is wrong.
		if invalid := s.Validate(); invalid != nil {
			err = invalid
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s.store: %w", at, err))
		}
		// The region that requests are signed for says nothing of where a bucket is.
		for _, key := range []string{"name " + r.Name, "bucket " + place.Endpoint + " " + place.Bucket + "/" + place.Prefix} {
			if other, there := seen[key]; there {
				errs = append(errs, fmt.Errorf("%s: %s has the same %s", at, other, strings.Fields(key)[0]))
			}
			seen[key] = at
		}
	}
	return errors.Join(errs...)
}

// DefaultConfig listens on loopback and runs a single etcd member.
func DefaultConfig() Config {
	return Config{
		Base: service.DefaultBase("127.0.0.1:4780", "127.0.0.1:4781"), Store: s3.DefaultConfig(),
		Etcd:       etcd.DefaultConfig(),
		Identity:   IdentityConfig{Prefix: etcd.DefaultConfig().Prefix, SettleHorizon: 5 * time.Minute, Idle: 6 * time.Hour, MaxUnprepared: regions.DefaultMaxUnprepared, MaxClaims: regions.DefaultMaxClaims},
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
	if c.Region != "" {
		if err := claims.Region(c.Region).Validate(); err != nil {
			errs = append(errs, fmt.Errorf("region: %w", err))
		}
		if there := c.Identity.Regions; len(there) > 0 && !slices.ContainsFunc(there, func(r RegionConfig) bool { return r.Name == c.Region }) {
			errs = append(errs, fmt.Errorf("region: %q is none of identity.regions", c.Region))
		}
	}
	if c.MaxStreams < 1 {
		errs = append(errs, errors.New("max_streams: must be greater than 0"))
	}
	return errors.Join(append(errs, c.rebalanceDelay().Validate(), c.Etcd.Validate(), c.Identity.Validate(), c.Base.Validate())...)
}

func (c Config) rebalanceDelay() ownership.RebalanceDelay {
	return ownership.RebalanceDelay{QuietPeriod: c.Rebalance.QuietPeriod, MaxDelay: c.Rebalance.MaxDelay}
}
