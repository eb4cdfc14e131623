package follow

import (
	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
)

// watchID adds the batch to the detector of agent ids that several machines use.
func (f *Follower) watchID(m accept.Manifest) {
	b := sharedid.Batch{Boot: m.Identity.BootOf(), AcceptedAt: m.AcceptedAt, MinTime: m.MinTime, MaxTime: m.MaxTime}
	if boots := f.shared.Add(f.d.Now(), b); boots != nil {
		f.d.Log.Warn("several machines send as one agent", "agent", b.Boot.Agent, "boots", boots)
	}
}

// SharedIDs returns the agent ids that several machines use now, sorted.
func (f *Follower) SharedIDs() []sharedid.Shared { return f.shared.All(f.d.Now()) }
