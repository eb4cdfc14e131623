package query

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

// Each thing that a node keeps is bounded by a setting. Garbage is bounded by none of them: without a limit for
// the process the collector lets it grow to the size of everything that is alive, and large queries leave
// gigabytes. The limit follows what the node holds now. A fixed limit from all bounds together would let garbage
// fill the space that is not used.

const (
	// processMemory is what a node needs besides what its settings bound: code, connections, the store's client,
	// frames that are decoded, and garbage until it is collected.
	processMemory = 256 << 20
	// memoryInterval is the time between two updates: shorter than it takes to fetch as much as processMemory.
	memoryInterval = time.Second
	// gcPercent is how much garbage there may be, in percent of what is alive, before it is collected: half of Go's
	// default. Most of what a node holds are samples and columns without pointers, which cost the collector little.
	gcPercent = 50
)

// limitMemory keeps the soft limit of the process until ctx ends.
func (s *Service) limitMemory(ctx context.Context) error {
	t := time.NewTicker(memoryInterval)
	defer t.Stop()
	for {
		s.setMem(s.memoryLimit())
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// memoryLimit is the setting; or what samples, indexes and caches hold now, plus a quarter since those are
// estimates, plus everything that queries may take.
func (s *Service) memoryLimit() int64 {
	// An operator's figure is exact, whatever the node holds.
	if s.cfg.MemoryLimit > 0 {
		return int64(s.cfg.MemoryLimit)
	}
	indexes, blocks := s.blocks.CacheBytes()
	held := s.live.Stats().Bytes + indexes + blocks + s.blocks.LabelBytes()
	return held + held/4 + int64(s.cfg.Limits.Memory) + processMemory
}

// setMemoryLimit is Deps.SetMemoryLimit of the command; nil if the environment sets the limit. It sets gcPercent, unless
// the environment has GOGC.
func setMemoryLimit() func(bytes int64) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return func(bytes int64) { debug.SetMemoryLimit(bytes) }
}
