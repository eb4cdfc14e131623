package live

import "lightmetrics.dev/lightmetrics/internal/series/agentlabel"

// agentsOf returns the agents that have visible rows of the segment in [mint, maxt]; calm says that all rows are visible.
// If series have a label with their agent, nothing is searched: each is of one agent.
func (p *Snapshot) agentsOf(s *segment, calm bool, mint, maxt int64) (seen agentlabel.Seen) {
	if p.store.cfg.AgentLabel != "" {
		return seen
	}
	if calm && s.oneBoot {
		if from, to := s.between(mint, maxt); from < to {
			seen.Add(s.parts[0].batch.Identity.Agent)
		}
		return seen
	}
	for i := range s.parts {
		b := s.parts[i].batch
		if agent := b.Identity.Agent; agent == seen.One || seen.Several() || !b.visible(p.version) {
			continue
		}
		if s.has(i, mint, maxt) {
			seen.Add(b.Identity.Agent)
		}
	}
	return seen
}

// Agents whose samples the series has in the range for which it was selected; none if series have a label with
// their agent (Config.AgentLabel).
func (s *Series) Agents() (seen agentlabel.Seen) {
	for i := range 1 + len(s.more) {
		seen.Merge(s.column(i).view.agents)
	}
	return seen
}
