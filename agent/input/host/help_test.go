package host

import (
	"os"
	"regexp"
	"testing"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestEveryMetricHasHelp compares the table with the names in the code: a machine has no series
// of what it does not have.
func TestEveryMetricHasHelp(t *testing.T) {
	names := map[string]bool{}
	for _, file := range []string{"host.go", "read.go", "disk.go"} {
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct{ pattern, prefix, suffix string }{
			{`h\.(?:gauge|counter)\("([a-z0-9_]+)",`, "", ""},
			{`h\.add\(series\.\w+, "([a-z0-9_]+)",`, "", ""},
			{`\{"(\w+)", m\.`, "node_memory_", "_bytes"},
			{`\{"((?:receive|transmit)_\w+)", d\.`, "node_network_", "_total"},
		} {
			for _, m := range regexp.MustCompile(p.pattern).FindAllSubmatch(src, -1) {
				names[p.prefix+string(m[1])+p.suffix] = true
			}
		}
	}
	for name := range names {
		if help[name] == "" {
			t.Errorf("no help for %s", name)
		}
	}
	for name := range help {
		if !names[name] {
			t.Errorf("help for %s, which is not in the code", name)
		}
	}
	if len(names) < 60 {
		t.Errorf("%d names found", len(names))
	}
	h := &Host{tracker: input.NewTracker()}
	h.add(series.Gauge, "node_load1", 1, nil)
	if s := h.samples[0].Series; s.Help != help["node_load1"] {
		t.Errorf("%+v", s)
	}
}
