package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
)

// TestStoreAnswersWrongly puts a proxy between the collectors and the store that breaks
// one request in eight: 409, 500, 503, resets, slow and cut bodies, answers that are lost
// after the write was applied, and 412 for a key that is not there or that the request itself made.
func TestStoreAnswersWrongly(t *testing.T) {
	t.Parallel()
	seed, rnd := seeded(t)
	seconds := size(t, 6, 600)
	c, p := behindProxy(t, rnd, 2)
	ctx := within(t, time.Duration(seconds)*time.Second+3*time.Minute)
	startAll(ctx, t, c)
	p.mu.Lock()
	p.rate = 0.125
	p.mu.Unlock()
	f := load.StartFleet(ctx, c, load.FleetOptions{Seed: seed, Senders: 4, Rows: 5, Pause: 5 * time.Millisecond, BootBatches: 20, HTTPEvery: 4, Races: true})
	time.Sleep(time.Duration(seconds) * time.Second) // the length of the fault, not a wait for anything
	// However slow the machine is, the fault lasts until each kind of it came.
	every, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	must(t, cluster.Poll(every, "each kind of fault", func() (bool, error) {
		missing := p.missing()
		return len(missing) == 0, fmt.Errorf("none of %v", missing)
	}))
	t.Logf("faults: %v", p.heal())
	finish(ctx, t, c, f)
}

// behindProxy makes a cluster whose collectors reach the store through a proxy without faults.
func behindProxy(t *testing.T, rnd *rand.Rand, collectors int) (*cluster.Cluster, *proxy) {
	t.Helper()
	p, url := startProxy(t, "", rnd, 0)
	c := newCluster(t, cluster.Options{Collectors: collectors, Adjust: func(process string, s map[string]any) {
		if strings.HasPrefix(process, "collector-") {
			s["store"].(map[string]any)["endpoint"] = url
		}
	}})
	p.addr = c.Addr.Store
	return c, p
}
