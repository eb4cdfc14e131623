package agentlabel_test

import (
	"iter"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
)

func pairs(kv ...string) iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for i := 0; i < len(kv); i += 2 {
			if !yield(kv[i], kv[i+1]) {
				return
			}
		}
	}
}

// TestOwnLabelsAreKept: an own label of the name gets the first free name with prefixes, as
// Prometheus' scrapes have it without honor_labels.
func TestOwnLabelsAreKept(t *testing.T) {
	b := labels.NewScratchBuilder(4)
	for _, c := range []struct {
		name agentlabel.Name
		own  iter.Seq2[string, string]
		want labels.Labels
	}{
		{"agent", pairs("__name__", "up"), labels.FromStrings("__name__", "up", "agent", "a1")},
		{"agent", pairs("__name__", "up", "agent", "x", "zone", "z"), labels.FromStrings("__name__", "up", "agent", "a1", "exported_agent", "x", "zone", "z")},
		{"agent", pairs("agent", "x", "exported_agent", "y"), labels.FromStrings("agent", "a1", "exported_agent", "y", "exported_exported_agent", "x")},
		{"agent", pairs("exported_agent", "y"), labels.FromStrings("agent", "a1", "exported_agent", "y")},
		{"host", pairs("agent", "x", "host", "h"), labels.FromStrings("agent", "x", "exported_host", "h", "host", "a1")},
		{"", pairs("agent", "x"), labels.FromStrings("agent", "x")},
	} {
		if got := c.name.Labels(&b, c.own, "a1"); !labels.Equal(got, c.want) {
			t.Errorf("%q: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestMatchersGoToWhatAnswersThem(t *testing.T) {
	var ms []*labels.Matcher
	for _, n := range []string{"agent", "exported_agent", "exported_exported_agent", "exported_agents", "my_exported_agent", "job"} {
		ms = append(ms, labels.MustNewMatcher(labels.MatchEqual, n, "x"))
	}
	for _, c := range []struct {
		name                 agentlabel.Name
		renamed              bool
		agent, exported, own int
	}{{"agent", true, 1, 2, 3}, {"agent", false, 1, 0, 5}, {"", true, 0, 0, 6}, {"job", true, 1, 0, 5}} {
		if got := c.name.Split(ms, c.renamed); len(got.Agent) != c.agent || len(got.Exported) != c.exported || len(got.Own) != c.own {
			t.Errorf("%q, renamed %v: %+v", c.name, c.renamed, got)
		}
	}
}

func TestSeenKnowsSeveral(t *testing.T) {
	var s agentlabel.Seen
	for i, c := range []struct {
		agent   string
		several bool
	}{{"", false}, {"a", false}, {"a", false}, {"", false}, {"b", true}, {"c", true}} {
		if s.Add(c.agent); s.Several() != c.several {
			t.Errorf("%d: after %q: %+v", i, c.agent, s)
		}
	}
	var o agentlabel.Seen
	o.Merge(s)
	if o != (agentlabel.Seen{One: "a", Other: "b"}) {
		t.Errorf("merged %+v", o)
	}
}
