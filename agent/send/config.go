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
	Collectors []string         `koanf:"collectors" help:"host:port of each collector's gRPC; one is used at a time, the others are for failover" check:"address" reload:"yes"`
	Fallback   []string         `koanf:"fallback" help:"collectors of other regions, which are used only while none of collectors gives answers" check:"address" reload:"yes"`
	Client     rpc.ClientConfig `koanf:"client"`

	FallbackAfter  time.Duration `koanf:"fallback_after" help:"how long none of collectors has to give answers before those of fallback are used; up to half as long again" reload:"yes"`
	ReturnAfter    time.Duration `koanf:"return_after" help:"how long one of collectors has to welcome the agent again, each time that it is asked, before the agent goes back; up to twice as long; doubled when that was too early" reload:"yes"`
	ReturnMax      time.Duration `koanf:"return_max" help:"longest return_after after doublings" reload:"yes"`
	ReturnInterval time.Duration `koanf:"return_interval" help:"how often one of collectors is asked meanwhile, with jitter" reload:"yes"`

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
		FallbackAfter:      10 * time.Second,
		ReturnAfter:        2 * time.Minute,
		ReturnMax:          15 * time.Minute,
		ReturnInterval:     30 * time.Second,
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
	for name, list := range map[string][]string{"collectors": c.Collectors, "fallback": c.Fallback} {
		for i, a := range list {
			if a == "" {
				return fmt.Errorf("%s[%d] is empty", name, i)
			}
			if slices.Contains(list[:i], a) {
				return fmt.Errorf("%s[%d]: %s is there twice", name, i, a)
			}
		}
	}
	for i, a := range c.Fallback {
		if slices.Contains(c.Collectors, a) {
			return fmt.Errorf("fallback[%d]: %s is in collectors, too", i, a)
		}
	}
	if c.MaxInFlightBatches < 1 || c.MaxInFlightBytes < 1 {
		return errors.New("max_in_flight_batches and max_in_flight_bytes: want at least 1")
	}
	for name, d := range map[string]time.Duration{
		"connect_timeout": c.ConnectTimeout, "answer_timeout": c.AnswerTimeout, "backoff_initial": c.BackoffInitial,
		"backoff_max": c.BackoffMax, "progress_interval": c.ProgressInterval, "settle_interval": c.SettleInterval,
		"fallback_after": c.FallbackAfter, "return_after": c.ReturnAfter, "return_interval": c.ReturnInterval,
	} {
		if d <= 0 {
			return fmt.Errorf("%s %s: want more than 0", name, d)
		}
	}
	if c.BackoffMax < c.BackoffInitial {
		return fmt.Errorf("backoff_max %s is less than backoff_initial %s", c.BackoffMax, c.BackoffInitial)
	}
	if c.ReturnMax < c.ReturnAfter {
		return fmt.Errorf("return_max %s is less than return_after %s", c.ReturnMax, c.ReturnAfter)
	}
	if _, err := c.Client.TLS.Config(); err != nil {
		return fmt.Errorf("client.tls: %w", err)
	}
	return nil
}
