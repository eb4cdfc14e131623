package query_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/query"
)

// oneHost is two hours of three agents with equal labels, as on one host name; the third
// agent's series have labels "agent" and "exported_agent" of their own. Each has a sample every
// 20 s of a value of its own.
func oneHost(t testing.TB, end time.Time, agents [3]string) *corpus {
	t.Helper()
	c := &corpus{}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	for a, agent := range agents {
		seq := uint64(1)
		for from := end.Add(-2 * time.Hour); from.Before(end); from = from.Add(10 * time.Minute) {
			b := frame.NewBuilder()
			must(b.SetResource(series.Label{Name: "host", Value: "web"}))
			ls := []series.Label{{Name: "__name__", Value: "load"}}
			if a == 2 {
				ls = append(ls, series.Label{Name: "agent", Value: "inner"}, series.Label{Name: "exported_agent", Value: "middle"})
			}
			id, err := b.AddSeries(ls, series.Gauge, "", 0)
			must(err)
			at := from.Add(time.Duration(a+1) * 100 * time.Millisecond)
			first := at
			for range 30 {
				must(b.Append(id, at.UnixNano(), float64(a+1)))
				at = at.Add(20 * time.Second)
			}
			last := at.Add(-20 * time.Second)
			f, err := b.Build(identity.Boot{Agent: agent, Boot: "b"}, seq)
			must(err)
			seq = f.Identity.SeqEnd + 1
			raw, err := frame.Encode(nil, f)
			must(err)
			own := &frame.Batch{}
			must(frame.Decode(raw, own, frame.Limits{}))
			sum := identity.Sum(raw)
			c.batches = append(c.batches, publishedtest.Batch{Frame: own, AcceptedAt: last.UnixNano()})
			c.builts = append(c.builts, built{frame: raw, manifest: accept.Manifest{
				AuthorityID: "test", Identity: own.Identity, FrameSHA256: sum, FrameBytes: uint64(len(raw)), RawBlobKey: layout.Blob(sum, 0),
				AcceptedAt: last.UnixNano(), CollectorID: "c1", WireVersion: 1, FrameVersion: 1, AttemptID: "0123456789abcdef0123456789abcdef",
				RecordCount: own.Identity.Count(), MinTime: first.UnixNano(), MaxTime: last.UnixNano(),
			}})
		}
	}
	return c
}

// Agents of one shard, whose series are in one chunk; and of a shard each.
var (
	oneShard    = [3]string{"a", "b", "c"}
	threeShards = [3]string{"web-1", "web-2", "web-4"}
)

// oneHostNodes are nodes that have the same samples in memory, in chunks, or in both.
func oneHostNodes(t *testing.T, end time.Time, label agentlabel.Name, agents [3]string) map[string]*node {
	c := oneHost(t, end, agents)
	nodes := map[string]*node{}
	for name, published := range map[string]func(timegrid.Hour) bool{
		"memory": nil,
		"mixed":  func(h timegrid.Hour) bool { return h < timegrid.HourOf(end.UnixMilli()) },
		"chunks": func(timegrid.Hour) bool { return true },
	} {
		a := newAuthority(t)
		if published != nil {
			a.rollups()
		}
		for _, b := range c.builts {
			a.accept(b)
		}
		for _, h := range publishedtest.Hours(c.batches) {
			if published != nil && published(h) {
				a.publish(h, 1, c.batches)
			}
		}
		nodes[name] = start1(t, a, func(cfg *query.Config) {
			cfg.Series.AgentLabel = label
			cfg.History.Window = 4 * time.Hour
			if name == "chunks" {
				cfg.History.Window = time.Millisecond
			}
		})
	}
	return nodes
}

// vector gives the values of an instant answer by label sets, as PromQL writes these.
func (n *node) vector(e envelope) map[string]string {
	n.t.Helper()
	var d struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := json.Unmarshal(e.Data, &d); err != nil {
		n.t.Fatalf("%v: %s", err, e.Data)
	}
	out := map[string]string{}
	for _, r := range d.Result {
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(r.Metric)) {
			if k != "__name__" {
				parts = append(parts, k+"="+r.Metric[k])
			}
		}
		out[strings.Join(parts, " ")] = fmt.Sprint(r.Value[1])
	}
	return out
}

func (n *node) list(path string, params ...string) []string {
	n.t.Helper()
	e := n.get(path, params...)
	var list []string
	if err := json.Unmarshal(e.Data, &list); err != nil {
		n.t.Fatalf("%v: %s", err, e.Data)
	}
	return list
}

// TestAgentsAreToldApart: of agents with equal labels each has its own series, wherever the
// samples are read from, and matchers and lists know the label.
func TestAgentsAreToldApart(t *testing.T) {
	end := timegrid.HourOf(time.Now().UnixMilli()).Start()
	const a, b, c = "agent=a host=web", "agent=b host=web", "agent=c exported_agent=middle exported_exported_agent=inner host=web"
	from, to := unix(end.Add(-2*time.Hour)), unix(end)
	for name, n := range oneHostNodes(t, end, agentlabel.Default, oneShard) {
		for expr, want := range map[string]map[string]string{
			`load`:                                   {a: "1", b: "2", c: "3"},
			`load{agent="b"}`:                        {b: "2"},
			`load{agent=~"a|c"}`:                     {a: "1", c: "3"},
			`load{agent!~"a|c",agent!=""}`:           {b: "2"},
			`load{agent="a",agent!="a"}`:             {},
			`load{agent="inner"}`:                    {},
			`load{agent=""}`:                         {},
			`{agent="a"}`:                            {a: "1"},
			`load{exported_agent="middle"}`:          {c: "3"},
			`load{exported_agent="inner"}`:           {},
			`load{exported_exported_agent="inner"}`:  {c: "3"},
			`load{exported_exported_agent!="inner"}`: {a: "1", b: "2"},
			`load{exported_agent=""}`:                {a: "1", b: "2"},
			`count(load)`:                            {"": "3"},
			// A minute of one agent has three samples, not nine.
			`max(count_over_time(load[1m]))`:                  {"": "3"},
			`count_over_time(load{agent="a"}[1h])`:            {a: "180"},
			`sum_over_time(load{exported_agent=""}[1h])`:      {a: "180", b: "360"},
			`avg by (agent) (avg_over_time(load[1h]))`:        {"agent=a": "1", "agent=b": "2", "agent=c": "3"},
			`avg by (host) (max_over_time(load[1h:20s]))`:     {"host=web": "2"},
			`load{agent="a"} + on (host) load{agent="b"}`:     {"host=web": "3"},
			`sum(rate(load{agent=~".+"}[1h]))`:                {"": "0"},
			`count by (host) (last_over_time(load[20m])) > 2`: {"host=web": "3"},
		} {
			e := n.get("/api/v1/query", "query", expr, "time", to)
			if got := n.vector(e); e.Status != "success" || !maps.Equal(got, want) {
				t.Errorf("%s: %s: %s %s gave %v, want %v", name, expr, e.Status, e.Error, got, want)
			}
			if e.Lightmetrics.Partial || len(e.Lightmetrics.Notes) > 0 {
				t.Errorf("%s: %s: %+v", name, expr, e.Lightmetrics)
			}
		}
		for what, got := range map[string]struct{ got, want []string }{
			"names":           {n.list("/api/v1/labels", "start", from, "end", to), []string{"__name__", "agent", "exported_agent", "exported_exported_agent", "host"}},
			"names of a":      {n.list("/api/v1/labels", "start", from, "end", to, "match[]", `{agent="a"}`), []string{"__name__", "agent", "host"}},
			"agents":          {n.list("/api/v1/label/agent/values", "start", from, "end", to), []string{"a", "b", "c"}},
			"agents but a":    {n.list("/api/v1/label/agent/values", "start", from, "end", to, "match[]", `load{agent!="a"}`), []string{"b", "c"}},
			"exported":        {n.list("/api/v1/label/exported_agent/values", "start", from, "end", to), []string{"middle"}},
			"exported twice":  {n.list("/api/v1/label/exported_exported_agent/values", "start", from, "end", to), []string{"inner"}},
			"hosts of a":      {n.list("/api/v1/label/host/values", "start", from, "end", to, "match[]", `{agent="a"}`), []string{"web"}},
			"hosts of nobody": {n.list("/api/v1/label/host/values", "start", from, "end", to, "match[]", `{agent="d"}`), []string{}},
		} {
			if !slices.Equal(got.got, got.want) {
				t.Errorf("%s: %s: %q, want %q", name, what, got.got, got.want)
			}
		}
		e := n.get("/api/v1/series", "match[]", "load", "start", from, "end", to)
		if got := strings.Count(string(e.Data), `"__name__":"load"`); got != 3 || !strings.Contains(string(e.Data), `"agent":"b"`) {
			t.Errorf("%s: series: %s", name, e.Data)
		}
	}
}

// TestAnAgentIsReadAlone: a matcher of one agent keeps a query from the indexes and chunks of others.
func TestAnAgentIsReadAlone(t *testing.T) {
	end := timegrid.HourOf(time.Now().UnixMilli()).Start()
	gets := func(expr string) int {
		n := oneHostNodes(t, end, agentlabel.Default, threeShards)["chunks"]
		e := n.get("/api/v1/query", "query", expr, "time", unix(end), "stats", "all")
		var d struct {
			Stats struct{ Published struct{ Gets int } }
		}
		if err := json.Unmarshal(e.Data, &d); err != nil || e.Lightmetrics.Partial {
			t.Fatalf("%v %+v: %s", err, e.Lightmetrics, e.Data)
		}
		return d.Stats.Published.Gets
	}
	// An index and a chunk in each agent's set.
	if all, one, regex, nobody := gets(`load`), gets(`load{agent="web-2"}`), gets(`load{agent=~"web-(1|4)"}`), gets(`load{agent="d"}`); all != 6 || one != 2 || regex != 4 || nobody != 0 {
		t.Errorf("%d requests for all agents, %d for one, %d for two, %d for one that has nothing; want 6, 2, 4, 0", all, one, regex, nobody)
	}
}

// TestMergedAgentsAreMarked: without the label agents with equal labels are one series, and
// each answer that has such a series says so; it is not partial for that.
func TestMergedAgentsAreMarked(t *testing.T) {
	end := timegrid.HourOf(time.Now().UnixMilli()).Start()
	for _, agents := range [][3]string{oneShard, threeShards} {
		for name, n := range oneHostNodes(t, end, "", agents) {
			for _, q := range []struct {
				expr   string
				want   map[string]string
				merged bool
			}{
				{`count(load)`, map[string]string{"": "2"}, true},
				{`count_over_time(load{agent=""}[1h])`, map[string]string{"host=web": "360"}, true},
				{`max_over_time(load{agent=""}[1h])`, map[string]string{"host=web": "2"}, true},
				{`load{agent="inner"}`, map[string]string{"agent=inner exported_agent=middle host=web": "3"}, false},
				{`count_over_time(load{agent="inner"}[1h])`, map[string]string{"agent=inner exported_agent=middle host=web": "180"}, false},
				{`count(load{agent="a"}) or vector(0)`, map[string]string{"": "0"}, false},
				// A sample of the first agent, before one of the second: of chunks only the times of all rows are reported.
				{`count_over_time(load{agent=""}[100ms] offset 19900ms)`, map[string]string{"host=web": "1"}, name == "chunks"},
				// A sample of the second agent, after the last of the first.
				{`count_over_time(load{agent=""}[100ms] offset 19800ms)`, map[string]string{"host=web": "1"}, false},
			} {
				e := n.get("/api/v1/query", "query", q.expr, "time", unix(end))
				if got := n.vector(e); e.Status != "success" || !maps.Equal(got, q.want) {
					t.Errorf("%s: %s: %s %s gave %v, want %v", name, q.expr, e.Status, e.Error, got, q.want)
				}
				if e.Lightmetrics.Partial || has(e.Lightmetrics.Notes, "MERGED_AGENTS") != q.merged || has(e.Warnings, "MERGED_AGENTS") != q.merged {
					t.Errorf("%s: %s: %+v, warnings %q; merged: %v", name, q.expr, e.Lightmetrics, e.Warnings, q.merged)
				}
			}
		}
	}
}

// TestMergedWindowsAreMarked: where an agent follows another one, hours of both are answered
// from windows, and the answer says so; with the label there are two series.
func TestMergedWindowsAreMarked(t *testing.T) {
	end := timegrid.HourOf(time.Now().UnixMilli()).Start()
	c := oneHost(t, end, oneShard)
	half := end.Add(-time.Hour).UnixNano()
	for _, label := range []agentlabel.Name{"", agentlabel.Default} {
		a := newAuthority(t)
		a.rollups()
		var kept []publishedtest.Batch
		for i, b := range c.builts {
			if first := b.manifest.MaxTime < half; b.manifest.Identity.Agent == "a" && first || b.manifest.Identity.Agent == "b" && !first {
				a.accept(b)
				kept = append(kept, c.batches[i])
			}
		}
		for _, h := range publishedtest.Hours(kept) {
			a.publish(h, 1, kept)
		}
		n := start1(t, a, func(cfg *query.Config) { cfg.Series.AgentLabel, cfg.History.Window = label, time.Millisecond })
		e := n.get("/api/v1/query", "query", "count_over_time(load[2h])", "time", unix(end), "stats", "all")
		want := map[string]string{"host=web": "360"}
		if label != "" {
			want = map[string]string{"agent=a host=web": "180", "agent=b host=web": "180"}
		}
		if got := n.vector(e); !maps.Equal(got, want) || !strings.Contains(string(e.Data), `"resolutions":{`) {
			t.Errorf("label %q: %v, want %v from windows: %s", label, got, want, e.Data)
		}
		if e.Lightmetrics.Partial || has(e.Lightmetrics.Notes, "MERGED_AGENTS") != (label == "") {
			t.Errorf("label %q: %+v", label, e.Lightmetrics)
		}
	}
}

func TestTheAgentLabelIsALabelName(t *testing.T) {
	for name, ok := range map[string]bool{"": true, "agent": true, "agent_id": true, "a b": false, "__agent": false, "1a": false, "agent-id": false, "агент": false} {
		cfg := query.DefaultConfig()
		cfg.Series.AgentLabel = agentlabel.Name(name)
		if err := cfg.Validate(); (err == nil) != ok || !ok && !strings.Contains(err.Error(), "series.agent_label") {
			t.Errorf("%q: %v", name, err)
		}
	}
}
