package rollup

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// TestKilledAtEveryFailpoint ends a worker at each of its points, at the first and at a
// later hit; frames and the journal are read beside the job, so there the request fails, unsent or
// unheard. Another worker finishes.
func TestKilledAtEveryFailpoint(t *testing.T) {
	points := 0
	for _, p := range failpoint.Points() {
		if p.Test != "services/rollup" {
			continue
		}
		points++
		for nth := 1; nth <= 2; nth++ {
			w := crashing(t, newMem(), true)
			action := failpoint.Panic
			if strings.Contains(p.Name, ".raw-blobs.") || strings.Contains(p.Name, ".journal.") {
				action = failpoint.Error
			}
			cfg := testConfig()
			if strings.HasPrefix(p.Name, "rollup.delta.") || strings.HasPrefix(p.Name, "rollup.helps.") {
				cfg = deltaConfig()
			}
			must(t, failpoint.Arm(fmt.Sprintf("%s=%s@%d", p.Name, action, nth)))
			ended := w.dies(p.Name, cfg)
			_ = failpoint.Arm("")
			if !ended {
				t.Errorf("%s is not reached %d times", p.Name, nth)
			}
			w.advance(time.Hour + cfg.Schedule.FoldAfter)
			w.drive(cfg, ownership.Grant{Shard: 0, Fence: 3})
			w.check(hour0, 0, 2)
			w.check(hour0+1, 0, 1)
			if left := w.left(0); len(left) > 0 {
				t.Errorf("%s at hit %d: batches left: %v", p.Name, nth, left)
			}
		}
	}
	if points != 20 {
		t.Errorf("%d points", points)
	}
}

// dies drives a worker until the point ends it, or a request fails.
func (w *world) dies(name string, cfg Config) (ended bool) {
	defer func() {
		switch r := recover(); r {
		case nil:
		case "failpoint " + name:
			ended = true
		default:
			panic(r)
		}
	}()
	o, err := w.owner(w.worker(cfg, w.store), ownership.Grant{Shard: 0, Fence: 2})
	for i := range 4 {
		if err == nil {
			err = rounds(w.t.Context(), o)
		}
		w.advance(cfg.Schedule.LateAfter)
		if cfg.Schedule.FoldAfter > 0 { // each delta has a late batch of its own, with a metric that nobody has seen
			w.accept(agentOf(0, 0), uint64(1000*(i+1)), point{fmt.Sprint("late_", i), series.Gauge, at(hour0, time.Duration(1000+i)*time.Second), 1})
		}
	}
	return err != nil
}
