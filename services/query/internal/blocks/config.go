// Package blocks keeps the view of blocks that queries read, and says which accepted batches are in them.
package blocks

import (
	"errors"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// Config of a Keeper and of the reading of blocks.
type Config struct {
	Poll        time.Duration `koanf:"poll" help:"time between two polls of the blocks of recent hours"`
	TTL         time.Duration `koanf:"ttl" help:"age from which the list of an older hour's blocks is read again when a query asks"`
	History     time.Duration `koanf:"history" help:"how far back blocks are read"`
	Resolutions bool          `koanf:"resolutions" help:"answer aligned range functions from 1m, 5m and 1h blocks where that gives the same result"`

	IndexCache config.Bytes `koanf:"index_cache" help:"most memory for indexes of chunks"`
	BlockCache config.Bytes `koanf:"block_cache" help:"most memory for blocks of chunks"`
	Gap        config.Bytes `koanf:"gap" help:"most bytes between two wanted blocks that one request reads"`
	Parallel   int          `koanf:"parallel" help:"requests for parts of objects at once, all queries together"`
}

// DefaultConfig polls every five seconds.
func DefaultConfig() Config {
	return Config{
		Poll: 15 * time.Second, TTL: time.Minute, History: 31 * 24 * time.Hour, Resolutions: true,
		IndexCache: 64 << 20, BlockCache: 128 << 20, Gap: 512 << 10, Parallel: 32,
	}
}

// Validate checks ranges.
func (c Config) Validate() error {
	if c.Poll <= 0 || c.TTL <= 0 || c.History <= 0 || c.Parallel <= 0 {
		return errors.New("rollup: poll, ttl, history and parallel must be greater than 0")
	}
	if c.IndexCache <= 0 || c.BlockCache <= 0 || c.Gap < 0 {
		return errors.New("rollup: index_cache and block_cache must be greater than 0, gap must not be negative")
	}
	return nil
}
