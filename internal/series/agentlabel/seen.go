package agentlabel

// Seen are the agents of the samples of one series, as far as it takes to know that there are
// several. The zero value has seen none.
type Seen struct{ One, Other string }

// Add counts an agent in; the empty one is none.
func (s *Seen) Add(agent string) {
	switch {
	case agent == "" || agent == s.One || s.Other != "":
	case s.One == "":
		s.One = agent
	default:
		s.Other = agent
	}
}

// Merge counts in what o has seen.
func (s *Seen) Merge(o Seen) {
	s.Add(o.One)
	s.Add(o.Other)
}

// Several reports samples of more than one agent.
func (s Seen) Several() bool { return s.Other != "" }
