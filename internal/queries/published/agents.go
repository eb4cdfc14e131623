package published

import (
	"context"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// match returns the series that all matchers accept, ascending. The index knows the series' own labels, and
// separately each one's agent. Once ctx is done the result is too short.
func (x *index) match(ctx context.Context, ms []*labels.Matcher) []int {
	split := x.label.Split(ms, x.renames)
	// The index answers these from its postings; what follows only filters the few series that are left.
	found := x.Select(matchers(ctx, split.Own)...)
	if len(split.Agent) > 0 {
		takes := takesAgent(split.Agent)
		found = slices.DeleteFunc(found, func(i int) bool { return !takes(x.Agent(i)) })
	}
	for _, m := range split.Exported {
		found = slices.DeleteFunc(found, func(i int) bool { return ctx.Err() != nil || !m.Matches(x.labels(i).Get(m.Name)) })
	}
	if len(found) < cap(found)/2 {
		found = slices.Clone(found) // it is cached, and charged by its capacity
	}
	return found
}

// takesAgent asks the matchers once for each agent: an index has many series of few agents.
func takesAgent(ms []*labels.Matcher) func(agent string) bool {
	if want, ok := oneAgent(ms); ok {
		return func(agent string) bool { return agent == want }
	}
	asked := map[string]bool{}
	return func(agent string) bool {
		takes, ok := asked[agent]
		if !ok {
			takes = agentlabel.Matches(ms, agent)
			asked[agent] = takes
		}
		return takes
	}
}

// oneAgent is the agent that matchers ask for by equality, if that is all that they ask.
func oneAgent(ms []*labels.Matcher) (string, bool) {
	if len(ms) == 1 && ms[0].Type == labels.MatchEqual {
		return ms[0].Value, true
	}
	return "", false
}

// mayHoldAgent rules out chunks by the agents whose batches their blocks were made of, and by the shards of agents
// that are asked for by equality.
func (u *unit) mayHoldAgent(ms []*labels.Matcher) bool {
	if len(ms) == 0 {
		return true
	}
	return slices.ContainsFunc(u.uses, func(p catalog.Piece) bool {
		for _, m := range ms {
			if m.Type == labels.MatchEqual && !p.Holds(m.Value) {
				return false
			}
		}
		boots := p.Block.Inputs.Boots()
		if len(boots) == 0 {
			return true // a compaction records its sources instead of its inputs
		}
		if want, ok := oneAgent(ms); ok {
			// Never equal, so the search ends at the first boot of the agent, or where it would be.
			i, _ := slices.BinarySearchFunc(boots, want, func(b catalog.BootInputs, want string) int {
				if b.Agent < want {
					return -1
				}
				return 1
			})
			return i < len(boots) && boots[i].Agent == want
		}
		return slices.ContainsFunc(boots, func(b catalog.BootInputs) bool { return agentlabel.Matches(ms, b.Agent) })
	})
}

// counted returns those of some series whose rows count in the piece. In a compaction some agents may be masked, as
// their shard's source was superseded; where none are, which is nearly always, it is the same slice.
func (x *index) counted(p *catalog.Piece, of []int) []int {
	if p.Shards == nil {
		return of
	}
	ids := x.shards(p.Block.Shards)
	if !slices.ContainsFunc(ids, func(id shard.ID) bool { return !slices.Contains(p.Shards, id) }) {
		return of
	}
	takes := map[string]bool{}
	var out []int
	for _, i := range of {
		agent := x.Agent(i)
		took, ok := takes[agent]
		if !ok {
			took = p.Holds(agent)
			takes[agent] = took
		}
		if took {
			out = append(out, i)
		}
	}
	return out
}

// shards returns the shards of all agents of the index, count being the authority's number of them. They are kept: a
// hash of each series' agent would take longer than the rest of a selection.
func (x *index) shards(count uint32) []shard.ID {
	if s := x.agentShards.Load(); s != nil && s.count == count {
		return s.ids
	}
	s := &agentShards{count: count}
	seen := map[string]bool{}
	for i := range x.Len() {
		if agent := x.Agent(i); !seen[agent] {
			seen[agent] = true
			if id := shard.Of(agent, count); !slices.Contains(s.ids, id) {
				s.ids = append(s.ids, id)
			}
		}
	}
	x.agentShards.Store(s)
	return s.ids
}

// agentShards are shards of agents, by the number of shards that there are.
type agentShards struct {
	count uint32
	ids   []shard.ID
}

// labelNames adds the names on some series; all says that these are all series of the index.
func (x *index) labelNames(all bool, series []int, add func(string)) {
	if all && !x.renames {
		for _, n := range x.LabelNames() {
			add(n)
		}
		// The label with the agent is added on reading, and so it is not in the index.
		if x.label != "" && len(series) > 0 {
			add(string(x.label))
		}
		return
	}
	for _, i := range series {
		x.labels(i).Range(func(l labels.Label) { add(l.Name) })
	}
}

// labelValues adds the values of a label on some series; all says that these are all series of the index.
func (x *index) labelValues(name string, all bool, series []int, add func(string)) {
	switch {
	case x.label != "" && name == string(x.label):
		for _, i := range series {
			add(x.Agent(i))
		}
	case all && !(x.renames && x.label.IsExported(name)):
		for _, v := range x.LabelValues(name) {
			add(v)
		}
	default:
		for _, i := range series {
			if v := x.labels(i).Get(name); v != "" {
				add(v)
			}
		}
	}
}

// agents of the pieces that may have rows in [mint, maxt], milliseconds; none if series have a label with their
// agent.
func agents(pieces []piece, mint, maxt int64) (seen agentlabel.Seen) {
	for _, p := range pieces {
		if p.ob.x.label != "" {
			return seen
		}
		mint, maxt := mint, maxt
		// Stand-in rows are read by whole hours, so an agent counts if it has any in these.
		if p.ob.as != nil {
			mint, maxt = widen(mint, maxt)
		}
		if _, _, any := p.ob.x.Parts(p.i, firstNS(max(mint, p.ob.hour.StartMS()+1)), lastNS(min(maxt, p.ob.hour.EndMS()))); any {
			seen.Add(p.ob.x.Agent(p.i))
		}
	}
	return seen
}

// Agents whose samples the series may have in [mint, maxt], milliseconds; none if series have a label with their
// agent (Config.AgentLabel).
func (s *Series) Agents(mint, maxt int64) agentlabel.Seen { return agents(s.pieces, mint, maxt) }

// Agents is as Series.Agents, over rows and raw samples.
func (r *Rolled) Agents(mint, maxt int64) (seen agentlabel.Seen) {
	for _, p := range r.rows {
		// What was found before has such a label, too.
		if p.cols != nil || p.ob.x.label != "" {
			return seen
		}
		if _, _, any := p.ob.x.Parts(p.i, firstNS(max(mint, p.from.StartMS()+1)), lastNS(min(maxt, p.to.EndMS()))); any {
			seen.Add(p.ob.x.Agent(p.i))
		}
	}
	if r.Raw != nil {
		seen.Merge(r.Raw.Agents(mint, maxt))
	}
	return seen
}
