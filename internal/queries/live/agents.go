package live

// agent is what the batches of one agent take. If a bound is exceeded, an agent beyond its share of it loses its
// own oldest samples before any other agent loses some.
type agent struct {
	name    string
	bytes   int64
	series  int
	batches batchHeap // with columns
}

func (s *Store) agent(name string) *agent {
	a := s.agents[name]
	if a == nil {
		a = &agent{name: name, batches: batchHeap{slot: slotAgent, before: older}}
		s.agents[name] = a
	}
	return a
}

// charge adds to what the agent and the store hold, and keeps the list of agents beyond their share.
func (s *Store) charge(a *agent, bytes int64, series int) {
	a.bytes += bytes
	a.series += series
	s.bytes += bytes
	s.seriesHeld += series
	if s.beyondShare(a) {
		s.heavy[a.name] = a
	} else {
		delete(s.heavy, a.name)
	}
	// An agent without batches is forgotten, so that the map does not grow with every agent there ever was.
	if a.bytes == 0 && a.series == 0 && a.batches.Len() == 0 && s.agents[a.name] == a {
		delete(s.agents, a.name)
	}
}

// beyondShare reports whether the agent exceeds its share. At most 200/AgentShare agents can, so heaviest searches
// them one by one.
func (s *Store) beyondShare(a *agent) bool {
	share := int64(s.cfg.AgentShare)
	return share > 0 && (a.bytes > s.cfg.MaxBytes/100*share || int64(a.series) > int64(s.cfg.MaxSeries)*share/100)
}

// heaviest is the agent beyond its share that takes most of the bound that is exceeded; nil when there is none.
// Ties are decided by name, so that every run evicts the same.
func (s *Store) heaviest() *agent {
	size := func(a *agent) int64 {
		if s.bytes > s.cfg.MaxBytes {
			return a.bytes
		}
		return int64(a.series)
	}
	var out *agent
	for _, a := range s.heavy {
		if a.batches.Len() == 0 {
			continue
		}
		if out == nil || size(a) > size(out) || size(a) == size(out) && a.name < out.name {
			out = a
		}
	}
	return out
}

// hold charges an agent for a shape that gets its first batch with columns, and for the series that are in no
// other shape. Others that use them later pay nothing.
func (s *Store) hold(sh *shape, a *agent) {
	if sh.live++; sh.live > 1 {
		return
	}
	sh.owner = a
	s.charge(a, sh.bytes, 0)
	for _, g := range sh.groups {
		for _, id := range g.series {
			ser := s.series[id]
			if ser.live++; ser.live == 1 {
				ser.owner = a
				s.charge(a, int64(ser.bytes), 1)
			}
		}
	}
}

// release takes the charge back with the last batch of a shape. The index keeps the shape as long as a snapshot
// can see it. The bounds leave that out, since evicting more would not free it.
func (s *Store) release(sh *shape) {
	if sh.live--; sh.live > 0 {
		return
	}
	s.charge(sh.owner, -sh.bytes, 0)
	for _, g := range sh.groups {
		for _, id := range g.series {
			ser := s.series[id]
			if ser.live--; ser.live == 0 {
				s.charge(ser.owner, -int64(ser.bytes), -1)
			}
		}
	}
}
