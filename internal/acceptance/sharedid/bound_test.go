package sharedid

import (
	"fmt"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// TestMemoryFollowsTheLivingAgents: agents that are gone, and boots beyond some of one agent,
// are forgotten.
func TestMemoryFollowsTheLivingAgents(t *testing.T) {
	d := New()
	at := time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC)
	add := func(agent, boot string) {
		ns := at.UnixNano()
		d.Add(at, Batch{Boot: identity.Boot{Agent: agent, Boot: boot}, AcceptedAt: ns, MinTime: ns, MaxTime: ns})
	}
	for hour := range 20 {
		for i := range 3000 {
			add(fmt.Sprintf("%d-%d", hour, i), "b")
		}
		if len(d.agents) > 6001 {
			t.Fatalf("hour %d: %d agents are remembered", hour, len(d.agents))
		}
		at = at.Add(time.Hour)
	}
	for i := range 100 {
		add("one", fmt.Sprint(i))
		at = at.Add(time.Second)
	}
	if n := len(d.agents["one"].boots); n != kept {
		t.Errorf("%d boots of one agent are remembered", n)
	}
	at = at.Add(time.Hour)
	if add("one", "99"); len(d.agents["one"].boots) != 1 || len(d.several) != 0 {
		t.Errorf("an hour later %d boots are remembered, %d agents with several", len(d.agents["one"].boots), len(d.several))
	}
}
