package send

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// Config of the sender.
type Config struct {
	Collectors []string         `koanf:"collectors" help:"host:port of each collector's gRPC; one is used at a time, the others are for failover" check:"address"`
	Client     rpc.ClientConfig `koanf:"client"`

	MaxInFlightBatches int           `koanf:"max_in_flight_batches" help:"batches that wait for an answer; the collector may allow fewer"`
	MaxInFlightBytes   config.Bytes  `koanf:"max_in_flight_bytes" help:"bytes of frames that wait for an answer; the collector may allow fewer"`
	ConnectTimeout     time.Duration `koanf:"connect_timeout" help:"from dialling to the welcome; a collector asks its store before it welcomes, for at most 15s"`
	AnswerTimeout      time.Duration `koanf:"answer_timeout" help:"a batch without an answer for so long ends the stream"`
	BackoffInitial     time.Duration `koanf:"backoff_initial" help:"first wait after a failure or RETRY; grows by half each time, with jitter"`
	BackoffMax         time.Duration `koanf:"backoff_max" help:"longest wait"`
	SettleInterval     time.Duration `koanf:"settle_interval" help:"how often collectors are asked what was decided about parked batches; not at all while there are none"`
	ProgressInterval   time.Duration `koanf:"progress_interval" help:"how often draining a backlog is logged"`
}

// DefaultConfig has one collector on this machine.
func DefaultConfig() Config {
	return Config{
		Collectors:         []string{"127.0.0.1:4750"},
		MaxInFlightBatches: 16,
		MaxInFlightBytes:   8 << 20,
		ConnectTimeout:     20 * time.Second,
		AnswerTimeout:      30 * time.Second,
		BackoffInitial:     250 * time.Millisecond,
		BackoffMax:         30 * time.Second,
		SettleInterval:     time.Minute,
		ProgressInterval:   10 * time.Second,
	}
}

// Validate checks ranges.
func (c Config) Validate() error {
	if len(c.Collectors) == 0 {
		return errors.New("collectors: want at least one")
	}
	for i, a := range c.Collectors {
		if a == "" {
			return fmt.Errorf("collectors[%d] is empty", i)
		}
		if slices.Contains(c.Collectors[:i], a) {
			return fmt.Errorf("collectors[%d]: %s is there twice", i, a)
		}
	}
	if c.MaxInFlightBatches < 1 || c.MaxInFlightBytes < 1 {
		return errors.New("max_in_flight_batches and max_in_flight_bytes: want at least 1")
	}
	for name, d := range map[string]time.Duration{
		"connect_timeout": c.ConnectTimeout, "answer_timeout": c.AnswerTimeout, "backoff_initial": c.BackoffInitial,
		"backoff_max": c.BackoffMax, "progress_interval": c.ProgressInterval, "settle_interval": c.SettleInterval,
	} {
		if d <= 0 {
			return fmt.Errorf("%s %s: want more than 0", name, d)
		}
	}
	if c.BackoffMax < c.BackoffInitial {
		return fmt.Errorf("backoff_max %s is less than backoff_initial %s", c.BackoffMax, c.BackoffInitial)
	}
	if _, err := c.Client.TLS.Config(); err != nil {
		return fmt.Errorf("client.tls: %w", err)
	}
	return nil
}
