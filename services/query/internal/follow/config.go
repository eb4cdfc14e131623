// Package follow finds accepted batches and keeps internal/queries/live supplied with them. It has three ways,
// each of which may find what another missed: the reconcilers' watch, the poll of accepted-by-time, and audits of
// the identity manifests themselves. Only an audit proves anything; docs/protocol/query.md says what.
package follow

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// Config of a Follower.
type Config struct {
	AuditInterval     time.Duration `koanf:"audit_interval" help:"time between two frontier audits of every boot"`
	AuditTimeout      time.Duration `koanf:"audit_timeout" help:"longest time for one audit, the frames that it found included"`
	FullAuditInterval time.Duration `koanf:"full_audit_interval" help:"time between two audits that list every boot from its start; 0 is only the first"`
	PollInterval      time.Duration `koanf:"poll_interval" help:"time between two polls of accepted-by-time; 0 is never"`
	PollLookback      time.Duration `koanf:"poll_lookback" help:"how far before its newest find a poll begins, for clock skew and slow reconcilers" needs:"poll_interval"`
	GapGrace          time.Duration `koanf:"gap_grace" help:"age after which a gap no longer holds a boot's frontier back"`
	Back              int           `koanf:"back" help:"identities before the frontier that an audit lists again, for overlaps"`
	Listers           int           `koanf:"listers" help:"boots that are listed at once"`
	Fetchers          int           `koanf:"fetchers" help:"frames that are fetched and decoded at once"`
	FetchTimeout      time.Duration `koanf:"fetch_timeout" help:"longest time for one batch: its manifest, its frame"`
	Snapshots         bool          `koanf:"snapshots" help:"start from live-state snapshots where rollup workers make them"`
	// Watch is where reconcilers are; if empty, batches are found by polls and audits only.
	Watch       []string         `koanf:"watch" help:"reconcilers' gRPC addresses to watch; empty relies on polls and audits" check:"address"`
	WatchClient rpc.ClientConfig `koanf:"watch_client" needs:"watch"`
}

// DefaultConfig audits every ten seconds.
func DefaultConfig() Config {
	return Config{
		AuditInterval: 10 * time.Second, AuditTimeout: 10 * time.Minute, FullAuditInterval: 10 * time.Minute,
		PollInterval: 2 * time.Second, PollLookback: 2 * time.Minute,
		GapGrace: time.Hour, Back: 64, Listers: 16, Fetchers: 16, FetchTimeout: 30 * time.Second, Snapshots: true,
	}
}

// Validate checks ranges.
func (c Config) Validate() error {
	var errs []error
	for name, ok := range map[string]bool{
		"audit_interval": c.AuditInterval > 0, "audit_timeout": c.AuditTimeout > 0, "gap_grace": c.GapGrace > 0,
		"listers": c.Listers > 0, "fetchers": c.Fetchers > 0, "fetch_timeout": c.FetchTimeout > 0,
	} {
		if !ok {
			errs = append(errs, fmt.Errorf("follow.%s: must be greater than 0", name))
		}
	}
	if c.FullAuditInterval < 0 || c.PollInterval < 0 || c.PollLookback < 0 || c.Back < 0 {
		errs = append(errs, errors.New("follow: full_audit_interval, poll_interval, poll_lookback, back: must not be negative"))
	}
	return errors.Join(errs...)
}
