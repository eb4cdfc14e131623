// Package follow reads the acceptance journal and keeps internal/queries/live supplied with what no
// block holds. journal.Follower proves what was read; this package puts loops around it, fetches the
// frames, and knows what an answer lacks. docs/protocol/query.md has the rules.
package follow

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// Config of a Follower.
type Config struct {
	PollInterval  time.Duration `koanf:"poll_interval" help:"time between two polls of the journal"`
	IdleInterval  time.Duration `koanf:"idle_interval" help:"longest time between two polls while nothing is accepted and every watch is connected"`
	PollTimeout   time.Duration `koanf:"poll_timeout" help:"longest time for one poll"`
	TokenTimeout  time.Duration `koanf:"token_timeout" help:"longest time that a query waits for what min_token or consistency=strong asks for"`
	RetryInterval time.Duration `koanf:"retry_interval" help:"time between two attempts to read frames that can't be read"`
	Readers       int           `koanf:"readers" help:"runs and files of the journal that are read at once"`
	Fetchers      int           `koanf:"fetchers" help:"frames that are fetched and decoded at once"`
	FetchTimeout  time.Duration `koanf:"fetch_timeout" help:"longest time for one frame"`
	Snapshots     bool          `koanf:"snapshots" help:"take frames from live-state snapshots at the start, where rollup workers make them"`
	// Watch is where reconcilers and collectors are; if empty, batches are found by polls only.
	Watch       []string         `koanf:"watch" help:"gRPC addresses of reconcilers and collectors to watch; empty relies on polls" check:"address"`
	WatchClient rpc.ClientConfig `koanf:"watch_client" needs:"watch"`
	FramesWait  time.Duration    `koanf:"frames_wait" help:"how long a collector that is watched may take to send frames that it has in memory, before the store is asked; 0 asks the store alone" needs:"watch"`
}

// DefaultConfig polls every second.
func DefaultConfig() Config {
	return Config{
		PollInterval: time.Second, IdleInterval: 10 * time.Second, PollTimeout: 10 * time.Minute, TokenTimeout: 10 * time.Second,
		RetryInterval: 10 * time.Second, Readers: 32, Fetchers: 32, FetchTimeout: 30 * time.Second, Snapshots: true,
		FramesWait: 250 * time.Millisecond,
	}
}

// Validate checks ranges.
func (c Config) Validate() error {
	var errs []error
	for name, ok := range map[string]bool{
		"poll_interval": c.PollInterval > 0, "poll_timeout": c.PollTimeout > 0, "token_timeout": c.TokenTimeout > 0, "retry_interval": c.RetryInterval > 0,
		"readers": c.Readers > 0, "fetchers": c.Fetchers > 0, "fetch_timeout": c.FetchTimeout > 0,
	} {
		if !ok {
			errs = append(errs, fmt.Errorf("follow.%s: must be greater than 0", name))
		}
	}
	if c.IdleInterval < c.PollInterval {
		errs = append(errs, errors.New("follow.idle_interval: must not be less than follow.poll_interval"))
	}
	if c.FramesWait < 0 {
		errs = append(errs, errors.New("follow.frames_wait: must not be negative; 0 asks the store alone"))
	}
	return errors.Join(errs...)
}
