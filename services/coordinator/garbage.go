package coordinator

import (
	"context"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"time"
)

// A coordinator with a busy linearizer makes some megabytes of garbage a second and has little alive, so that the default of
// Go's collector takes a fifth of its CPU. It lets the heap grow further while that costs little memory.
const (
	// garbagePercent is how much garbage there may be, in percent of what is alive, and garbageMost, bytes, how much in all. With more
	// alive than garbageMost the default of 100 percent holds: keys of a large etcd are on the heap.
	garbagePercent = 400
	garbageMost    = 256 << 20
	// garbageInterval is the time between two looks at what is alive.
	garbageInterval = 5 * time.Second
)

// setGCPercent is Deps.SetGCPercent of the command; nil if the environment sets the collector's goals.
func setGCPercent() func(percent int) {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return func(percent int) { debug.SetGCPercent(percent) }
}

// collectLess paces the collector until ctx ends.
func (s *Service) collectLess(ctx context.Context) error {
	t := time.NewTicker(garbageInterval)
	defer t.Stop()
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for {
		runtimemetrics.Read(live)
		s.setGC(percentOf(live[0].Value.Uint64()))
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// percentOf is the collector's goal with so many bytes alive.
func percentOf(live uint64) int {
	return int(min(max(garbageMost*100/max(live, 1), 100), garbagePercent))
}
