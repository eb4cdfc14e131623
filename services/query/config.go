// Package query is the service that reads accepted batches back: PromQL by the
// upstream engine over what internal/queries/live keeps, with the completeness of every answer.
package query

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/service/bucket"
	"lightmetrics.dev/lightmetrics/services/query/internal/answer"
	"lightmetrics.dev/lightmetrics/services/query/internal/blocks"
	"lightmetrics.dev/lightmetrics/services/query/internal/follow"
	"lightmetrics.dev/lightmetrics/services/query/internal/regions"
)

// Config of a query node. docs/guide/query.md explains every setting.
type Config struct {
	service.Base
	bucket.Bucket
	CORS web.CORSConfig `koanf:"cors"`

	WriteTimeout time.Duration `koanf:"write_timeout" help:"longest time that a client may leave an answer unread; one of HTTP may take one second more for every 256 KiB"`
	Lookback     time.Duration `koanf:"lookback" help:"how long an instant selector takes the last sample for the current value"`
	StaleAfter   time.Duration `koanf:"stale_after" help:"time since the journal was read to its end from which answers are partial"`
	// MemoryLimit is the Go runtime's soft limit, if Deps.SetMemoryLimit is given.
	MemoryLimit config.Bytes `koanf:"memory_limit" help:"soft limit of the process's memory; 0 follows what is held, the environment's GOMEMLIMIT wins"`

	Series  SeriesConfig  `koanf:"series"`
	History HistoryConfig `koanf:"history"`
	Follow  follow.Config `koanf:"follow"`
	Rollup  blocks.Config `koanf:"rollup"`
	Limits  answer.Limits `koanf:"limits"`
	Events  events.Config `koanf:"events"`

	Region  claims.Region    `koanf:"region" help:"name of the region that the bucket is of; empty: no regions"`
	Regions []regions.Region `koanf:"regions" help:"list in the file: the query services of the other regions: name, endpoint, timeout, client" needs:"region"`
	Fanout  regions.Config   `koanf:"fanout"`
}

// RegionConfig is another region's query service.
type RegionConfig = regions.Region

// SeriesConfig is how series are distinguished.
type SeriesConfig struct {
	AgentLabel agentlabel.Name `koanf:"agent_label" help:"label of every series with the agent that sent it; empty: none, series of different agents with equal labels are one"`
}

// HistoryConfig bounds what is kept in memory.
type HistoryConfig struct {
	Window   time.Duration `koanf:"window" help:"how far back samples are kept in memory, by sample time"`
	MaxBytes config.Bytes  `koanf:"max_bytes" help:"most memory for samples and indexes, estimated; beyond it the oldest samples are evicted"`
	Series   int           `koanf:"series" help:"most series in memory; beyond it the oldest samples are evicted"`
	// AgentShare and Future say what is evicted before the oldest samples.
	AgentShare int           `koanf:"agent_share" help:"percentage of max_bytes and series beyond which an agent's own oldest samples are evicted first"`
	Future     time.Duration `koanf:"future" help:"how far after now a sample may lie before it is evicted ahead of all others when a bound is met"`
}

// DefaultConfig listens on loopback and keeps two hours.
func DefaultConfig() Config {
	return Config{
		Base: service.DefaultBase("127.0.0.1:4760", "127.0.0.1:4761"), Bucket: bucket.Default(),
		WriteTimeout: 30 * time.Second, Lookback: 5 * time.Minute, StaleAfter: 30 * time.Second,
		Series:  SeriesConfig{AgentLabel: agentlabel.Default},
		History: HistoryConfig{Window: 2 * time.Hour, MaxBytes: 1 << 30, Series: 2_000_000, AgentShare: 25, Future: time.Hour},
		Follow:  follow.DefaultConfig(),
		Rollup:  blocks.DefaultConfig(),
		Limits:  answer.DefaultLimits(),
		Events:  events.DefaultConfig(),
		Fanout:  regions.DefaultConfig(),
	}
}

// Validate checks ranges.
func (c Config) Validate() error {
	var errs []error
	for name, d := range map[string]time.Duration{
		"write_timeout": c.WriteTimeout, "lookback": c.Lookback, "stale_after": c.StaleAfter, "history.future": c.History.Future,
	} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s: must be greater than 0", name))
		}
	}
	if c.History.AgentShare < 1 || c.History.AgentShare > 100 {
		errs = append(errs, errors.New("history.agent_share: must be a percentage from 1 to 100"))
	}
	// What a poll proves is as old as the poll before it.
	if c.StaleAfter <= 2*c.Follow.IdleInterval {
		errs = append(errs, errors.New("stale_after: must be greater than twice follow.idle_interval"))
	}
	if err := c.Series.AgentLabel.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("series.agent_label: %w", err))
	}
	if c.MemoryLimit < 0 {
		errs = append(errs, errors.New("memory_limit: must not be negative"))
	}
	return errors.Join(append(errs, c.live().Validate(), c.Follow.Validate(), c.Rollup.Validate(), c.Limits.Validate(), c.Events.Validate(), c.Base.Validate(), c.CORS.Validate(),
		regions.Validate(c.Region, c.Regions, c.Fanout))...)
}

func (c Config) live() live.Config {
	h := c.History
	return live.Config{History: h.Window, MaxBytes: int64(h.MaxBytes), MaxSeries: h.Series, AgentShare: h.AgentShare, Future: h.Future, AgentLabel: c.Series.AgentLabel}
}
