package agentlabel

// Seen has up to two of the agents whose samples a series has, which is enough to know whether
// there are several. The zero value has none.
type Seen struct{ One, Other string }

// Add adds an agent; the empty one is ignored.
func (s *Seen) Add(agent string) {
	switch {
	case agent == "" || agent == s.One || s.Other != "":
	case s.One == "":
		s.One = agent
	default:
		s.Other = agent
	}
}

// Merge adds the agents of o.
func (s *Seen) Merge(o Seen) {
	s.Add(o.One)
	s.Add(o.Other)
}

// Several reports whether there are samples of more than one agent.
func (s Seen) Several() bool { return s.Other != "" }
