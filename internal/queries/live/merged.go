package live

import (
	"sort"

	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
)

// agentsOf returns the agents that have visible rows of the segment in [mint, maxt]. If series have a label with
// their agent, nothing is searched: each is of one agent.
func (p *Snapshot) agentsOf(s *segment, mint, maxt int64) (seen agentlabel.Seen) {
	if p.store.cfg.AgentLabel != "" {
		return seen
	}
	for _, pt := range s.parts {
		if agent := pt.batch.Identity.Agent; agent == seen.One || seen.Several() || !pt.batch.visible(p.version) {
			continue
		}
		rows := s.ms[pt.row : pt.row+pt.rows]
		if i := sort.Search(len(rows), func(i int) bool { return rows[i] >= mint }); i < len(rows) && rows[i] <= maxt {
			seen.Add(pt.batch.Identity.Agent)
		}
	}
	return seen
}

// Agents whose samples the series has in the range for which it was selected; none if series have a label with
// their agent (Config.AgentLabel).
func (s *Series) Agents() (seen agentlabel.Seen) {
	for _, c := range s.cells {
		seen.Merge(c.view.agents)
	}
	return seen
}
