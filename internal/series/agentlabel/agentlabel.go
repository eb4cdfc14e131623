// Package agentlabel gives every series a label with the agent that it comes from, so that
// series of different agents are never one. The agent is that of the accepted identity: what
// a frame says of itself can't change it. docs/adr/0006-series-carry-their-agent.md has the
// reasons.
package agentlabel

import (
	"fmt"
	"iter"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// Default is the label's name where nothing else is set.
const Default Name = "agent"

// Name of the label. The empty name adds none: series of different agents with equal labels
// are one series then.
type Name string

// Validate wants a label name as the Prometheus text format has them: other names would
// need quotes in every selector. Names that begin with "__" are refused too, as Prometheus keeps them for itself.
func (n Name) Validate() error {
	if n == "" {
		return nil
	}
	if !model.LegacyValidation.IsValidLabelName(string(n)) || strings.HasPrefix(string(n), model.ReservedLabelPrefix) {
		return fmt.Errorf("%q is no label name: letters, digits and _ are, not beginning with a digit or __", string(n))
	}
	return nil
}

// prefix of a series' own label that the added one would hide, as Prometheus has it for
// honor_labels: false.
const prefix = "exported_"

// Labels gives the labels of a series of agent. own are the series' own, each name once. An
// own label of the name is kept as exported_NAME, with as many further prefixes as it takes to meet
// no other. b is scratch memory.
func (n Name) Labels(b *labels.ScratchBuilder, own iter.Seq2[string, string], agent string) labels.Labels {
	b.Reset()
	hidden := ""
	for name, value := range own {
		if n != "" && name == string(n) {
			hidden = value
			continue
		}
		b.Add(name, value)
	}
	if n != "" {
		b.Add(string(n), agent)
	}
	if hidden != "" {
		b.Add(n.exported(own), hidden)
	}
	b.Sort()
	return b.Labels()
}

// exported is the first name with prefixes that own has no label of.
func (n Name) exported(own iter.Seq2[string, string]) string {
	for name := prefix + string(n); ; name = prefix + name {
		taken := false
		for have := range own {
			taken = taken || have == name
		}
		if !taken {
			return name
		}
	}
}

// Matchers are what a selector asks for, by what can answer it.
type Matchers struct {
	// Agent are of the added label: they look at the agent.
	Agent []*labels.Matcher
	// Own are of labels that series have themselves.
	Own []*labels.Matcher
	// Exported are of labels that may be a series' own or an own one renamed.
	Exported []*labels.Matcher
}

// Split sorts matchers. renamed says that series with an own label of the name exist: without
// them nothing is renamed, and Exported stays empty.
func (n Name) Split(ms []*labels.Matcher, renamed bool) Matchers {
	if n == "" {
		return Matchers{Own: ms}
	}
	var out Matchers
	for _, m := range ms {
		switch {
		case m.Name == string(n):
			out.Agent = append(out.Agent, m)
		case renamed && n.IsExported(m.Name):
			out.Exported = append(out.Exported, m)
		default:
			out.Own = append(out.Own, m)
		}
	}
	return out
}

// IsExported reports that an own label of the name may have been renamed to name.
func (n Name) IsExported(name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	for ok && rest != string(n) {
		rest, ok = strings.CutPrefix(rest, prefix)
	}
	return ok && n != ""
}

// Matches reports whether every matcher takes the value.
func Matches(ms []*labels.Matcher, value string) bool {
	for _, m := range ms {
		if !m.Matches(value) {
			return false
		}
	}
	return true
}
