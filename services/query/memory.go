package query

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

// A node's memory is bounded by settings for each thing that it keeps. Garbage is bounded
// by none of them: without a limit of the process the collector lets it take as much again
// as all that is alive, and large queries leave gigabytes of it. The limit follows what the
// node holds: one for all bounds together would let garbage fill the room that is not used.

const (
	// processMemory is what a node needs beside what its settings bound: code, connections,
	// the store's client, frames that are decoded, and garbage that waits for its collection.
	processMemory = 256 << 20
	// memoryInterval is the time between two looks at what the node holds: less than it
	// takes to fetch as much as processMemory.
	memoryInterval = time.Second
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

// memoryLimit is the setting, or what samples, indexes and caches hold now, a quarter more
// as those are estimates, and all that queries may take.
func (s *Service) memoryLimit() int64 {
	if s.cfg.MemoryLimit > 0 {
		return int64(s.cfg.MemoryLimit)
	}
	indexes, blocks := s.blocks.CacheBytes()
	held := s.live.Stats().Bytes + indexes + blocks
	return held + held/4 + int64(s.cfg.Limits.Memory) + processMemory
}

// setMemoryLimit is Deps.SetMemoryLimit of the command, nil where the environment decides.
func setMemoryLimit() func(bytes int64) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return func(bytes int64) { debug.SetMemoryLimit(bytes) }
}
