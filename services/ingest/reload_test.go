package ingest

import (
	"testing"
	"time"
)

// TestReloadedRates: a new rate holds for agents that are known already, and 0 lifts it.
func TestReloadedRates(t *testing.T) {
	now := time.Unix(1000, 0)
	r := newAgents(Limits{AgentBatchesPerSec: 1, AgentBatchesBurst: 1, AgentsTracked: 10}, func() time.Time { return now })
	taken := func() (n int) {
		for range 20 {
			if _, ok := r.takeBatch("a"); ok {
				n++
			}
		}
		return n
	}
	if n := taken(); n != 1 {
		t.Fatalf("%d batches at a burst of 1", n)
	}
	r.setRate(10, 5)
	now = now.Add(time.Second)
	if n := taken(); n != 5 {
		t.Errorf("%d batches at a burst of 5", n)
	}
	r.setRate(0, 5)
	if n := taken(); n != 20 {
		t.Errorf("%d of 20 batches without a limit", n)
	}
}
