// Package agentlabel adds a label with the agent to every series, so that series of different
// agents are always different. The agent is that of the accepted identity; labels in a frame
// can't change it. docs/adr/0006-series-carry-their-agent.md has the reasons.
package agentlabel

import (
	"fmt"
	"iter"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// Default is the label's name unless another one is set.
const Default Name = "agent"

// Name of the label. The empty name adds no label: series of different agents with equal labels
// are then one series.
type Name string

// Validate checks that the name is a label name of the Prometheus text format: other names
// would need quotes in every selector. Names that begin with "__" are refused as well,
// because Prometheus reserves them.
func (n Name) Validate() error {
	if n == "" {
		return nil
	}
	if !model.LegacyValidation.IsValidLabelName(string(n)) || strings.HasPrefix(string(n), model.ReservedLabelPrefix) {
		return fmt.Errorf("%q is no label name: letters, digits and _ are, not beginning with a digit or __", string(n))
	}
	return nil
}

// prefix is added to a series' own label that has the name of the added one, as Prometheus does for
// honor_labels: false.
const prefix = "exported_"

// Labels returns the labels of a series of agent. own are the series' own labels, each name
// once. An own label with the added label's name is renamed to exported_NAME, with as many
// further prefixes as needed to collide with no other. b is scratch memory.
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

// exported is the first prefixed name that is not the name of a label in own.
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

// Matchers are the matchers of a selector, by the labels that they apply to.
type Matchers struct {
	// Agent matchers apply to the added label, so to the agent.
	Agent []*labels.Matcher
	// Own matchers apply to labels that series have themselves.
	Own []*labels.Matcher
	// Exported matchers apply to labels that may be a series' own or a renamed one.
	Exported []*labels.Matcher
}

// Split groups matchers by the labels that they apply to. renamed says that there are series
// with an own label of the added name: without such series nothing is renamed, and Exported
// stays empty.
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

// IsExported reports whether an own label with the added name may have been renamed to name.
func (n Name) IsExported(name string) bool {
	rest, ok := strings.CutPrefix(name, prefix)
	for ok && rest != string(n) {
		rest, ok = strings.CutPrefix(rest, prefix)
	}
	return ok && n != ""
}

// Matches reports whether every matcher matches the value.
func Matches(ms []*labels.Matcher, value string) bool {
	for _, m := range ms {
		if !m.Matches(value) {
			return false
		}
	}
	return true
}
