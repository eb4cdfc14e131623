package query_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query"
)

// TestNamesOfAllRegions: series, labels, values and metadata are those of all regions, each once.
func TestNamesOfAllRegions(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	f := newFleet(t, []string{"eu", "us"}, time.Now, func(region string, a *authority) {
		boot := identity.Boot{Agent: "host-" + region, Boot: "b"}
		a.accept(a.build(boot, 1, now, point{"only_" + region, 1, now}),
			a.buildMeta(boot, 2, now, "both", series.Gauge, "", "same help"),
			a.buildMeta(boot, 3, now, "other", series.Gauge, "", "help of "+region),
			// A series that both have: its agent moved.
			a.build(identity.Boot{Agent: "mover", Boot: "b"}, map[string]uint64{"eu": 1, "us": 5}[region], now, point{"moved", 1, now.Add(-time.Duration(len(region)) * time.Second)}))
	}, nil)
	for _, n := range f.nodes {
		get := func(path string, params ...string) string { return string(n.get(path, params...).Data) }
		if got := get("/api/v1/label/__name__/values"); got != `["both","moved","only_eu","only_us","other"]` {
			t.Errorf("values: %s", got)
		}
		if got := get("/api/v1/label/agent/values"); got != `["host-eu","host-us","mover"]` {
			t.Errorf("agents: %s", got)
		}
		if got := get("/api/v1/labels", "match[]", "only_us"); got != `["__name__","agent","instance","job"]` {
			t.Errorf("names: %s", got)
		}
		if got := get("/api/v1/label/agent/values", "regions", "us"); got != `["host-us","mover"]` {
			t.Errorf("agents of one region: %s", got)
		}
		if got := get("/api/v1/series", "match[]", `{__name__=~"moved|only.*"}`); strings.Count(got, "__name__") != 3 || strings.Count(got, `"moved"`) != 1 {
			t.Errorf("series: %s", got)
		}
		if got := get("/api/v1/series", "match[]", "both", "match[]", "moved", "limit", "2"); strings.Count(got, "__name__") != 2 {
			t.Errorf("limited series: %s", got)
		}
		if e := n.get("/api/v1/series", "match[]", "moved"); e.Lightmetrics.Partial || len(e.Lightmetrics.Regions) != 2 {
			t.Errorf("series: %+v", e.Lightmetrics)
		}
		got := get("/api/v1/metadata")
		if strings.Count(got, "same help") != 1 || !strings.Contains(got, "help of eu") || !strings.Contains(got, "help of us") {
			t.Errorf("metadata: %s", got)
		}
		if e := n.get("/api/v1/query", "query", "up", "regions", "mars"); e.code != 400 || e.ErrorType != "bad_data" || !strings.Contains(e.Error, `"mars"`) {
			t.Errorf("%d %s", e.code, e.Error)
		}
		if e := n.get("/api/v1/query", "query", "up", "partial_response", "perhaps"); e.code != 400 {
			t.Errorf("%d %s", e.code, e.Error)
		}
	}
}

// TestAgentsOfAllRegions: a boot is listed once, however many regions have batches of it, and what one lacks and another has is
// no gap; pages of any size have them all.
func TestAgentsOfAllRegions(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	f := newFleet(t, []string{"ap", "eu", "us"}, time.Now, func(region string, a *authority) {
		one := func(agent string, seqs ...uint64) {
			for _, seq := range seqs {
				a.accept(a.build(identity.Boot{Agent: agent, Boot: "b"}, seq, now, point{"m", 1, now.Add(time.Duration(seq) * -time.Second)}))
			}
		}
		for i := range 7 {
			one(fmt.Sprintf("%s-%d", region, i), 1)
		}
		// 1 to 6, of which nobody has 4.
		one("mover", map[string][]uint64{"ap": {1, 6}, "eu": {2, 5}, "us": {3}}[region]...)
		sum := identity.Sum([]byte(region))
		id := identity.Batch{Agent: "clash", Boot: "b", SeqStart: 1, SeqEnd: 2}
		// Of a record that can't be read the key says enough.
		a.put(layout.Quarantine(id, sum), []byte("{}"))
	}, nil)
	c := client(t, f.nodes["eu"])
	for _, size := range []int32{1, 2, 3, 5, 100} {
		var names []string
		req := &queryv1.ListAgentsRequest{PageSize: size}
		for pages := 0; pages < 100; pages++ {
			resp, err := c.ListAgents(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			if n := len(resp.GetAgents()); n > int(size) || n == 0 {
				t.Fatalf("a page of %d has %d", size, n)
			}
			if k := resp.GetCompleteness(); k.GetPartial() || len(k.GetRegions()) != 3 {
				t.Errorf("%v", k)
			}
			for _, a := range resp.GetAgents() {
				names = append(names, a.GetAgentId())
				if a.GetAgentId() != "mover" {
					if len(a.GetRegions()) != 1 || len(a.GetGaps()) > 0 {
						t.Errorf("%v", a)
					}
					continue
				}
				if a.GetFirstSeq() != 1 || a.GetLastSeq() != 6 || a.GetAcceptedThrough() != 3 || a.GetRecordCount() != 5 || a.GetBatchCount() != 5 ||
					len(a.GetGaps()) != 1 || a.GetGaps()[0].GetStart() != 4 || a.GetGaps()[0].GetEnd() != 4 || len(a.GetOverlaps()) > 0 || len(a.GetRegions()) != 3 {
					t.Errorf("%v", a)
				}
			}
			if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
				break
			}
		}
		if len(names) != 22 || !slices.IsSorted(names) {
			t.Errorf("pages of %d: %v", size, names)
		}
	}
	only, err := c.ListAgents(t.Context(), &queryv1.ListAgentsRequest{AgentId: "mover", Regions: []string{"local"}})
	if err != nil || len(only.GetAgents()) != 1 || len(only.GetAgents()[0].GetGaps()) != 1 || only.GetAgents()[0].GetFirstSeq() != 2 {
		t.Errorf("%v %v", only, err)
	}
	var seen []string
	req := &queryv1.ListConflictsRequest{PageSize: 1}
	for {
		resp, err := c.ListConflicts(t.Context(), req)
		if err != nil || len(resp.GetConflicts()) != 1 || len(resp.GetRegions()) != 3 {
			t.Fatalf("%v %v", resp, err)
		}
		k := resp.GetConflicts()[0]
		if k.GetAgentId() != "clash" || k.GetSubmittedSha256() != identity.Sum([]byte(k.GetRegion())).String() {
			t.Errorf("%v", k)
		}
		seen = append(seen, k.GetRegion())
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			break
		}
	}
	if slices.Sort(seen); !slices.Equal(seen, []string{"ap", "eu", "us"}) {
		t.Errorf("conflicts of %v", seen)
	}
}

// TestRolledRowsCrossAsValues: a call that rows answer costs a few values of another region, and is that of all samples; where a
// series is in two regions, samples are read in its place.
func TestRolledRowsCrossAsValues(t *testing.T) {
	end := time.Now().Truncate(time.Hour)
	now := func() time.Time { return end.Add(10 * time.Minute) }
	c := newCorpus(t, rand.New(rand.NewPCG(9, 79)), end.Add(-5*time.Hour), end.Add(-2*time.Hour))
	whole := newAuthority(t)
	fill := func(a *authority, agents func(string, int) bool) {
		of := &corpus{}
		for i, b := range c.builts {
			if agents(b.manifest.Identity.Agent, i) {
				of.builts, of.batches = append(of.builts, b), append(of.batches, c.batches[i])
			}
		}
		a.rollups()
		a.accept(of.builts...)
		for _, h := range publishedtest.Hours(of.batches) {
			a.publish(h, 1, of.batches)
		}
	}
	fill(whole, func(string, int) bool { return true })
	one := startAt(t, whole, now, nil)
	<-one.Complete()
	<-one.BlocksRead()
	for name, apart := range map[string]bool{"apart": true, "together": false} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, []string{"eu", "us"}, now, func(region string, a *authority) {
				fill(a, func(agent string, i int) bool {
					home := map[string]string{"host0": "eu", "host1": "us", "host2": "us"}[agent]
					if !apart && i%2 == 0 {
						home = "us"
					}
					return home == region
				})
			}, nil)
			n := f.nodes["eu"]
			from, to := end.Add(-4*time.Hour), end.Add(-2*time.Hour)
			for _, expr := range []string{`sum by (job) (rate(c_total[1h]))`, `max_over_time(g[1h])`, `sum(increase(h[1h]))`, `increase(c_total{dev="1"}[1h]) + on (agent, dev) group_left () count_over_time(g{dev="1"}[1h])`} {
				params := []string{"query", expr, "start", unix(from), "end", unix(to), "step", "3600"}
				before := n.number(`lightmetrics_query_region_samples_total{region="us"}`)
				e := n.get("/api/v1/query_range", params...)
				came := n.number(`lightmetrics_query_region_samples_total{region="us"}`) - before
				if d := differs(e.results(t), one.get("/api/v1/query_range", params...).results(t)); d != "" || e.Lightmetrics.Partial {
					t.Errorf("%s: %s %+v", expr, d, e.Lightmetrics)
				}
				// Two agents with at most three series and three steps, for each of two calls; their samples are some hundred each.
				if few := came <= 2*2*3*3; few != apart || came == 0 {
					t.Errorf("%s: %v values came", expr, came)
				}
			}
		})
	}
}

// TestInstantSelectorsCrossThin: of a selector that is evaluated at some times only the samples that count there are sent, and the
// answer is that of all.
func TestInstantSelectorsCrossThin(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	f := newFleet(t, []string{"eu", "us"}, time.Now, func(region string, a *authority) {
		// One batch of 20 samples, and so one run, or two where windows of memory meet.
		list, _ := counters(t, region, 1, now.Add(-5*time.Minute), now)
		a.accept(list...)
	}, nil)
	n := f.nodes["eu"]
	for _, c := range []struct {
		times float64
		ask   []string
	}{
		{1, []string{"/api/v1/query", "query", "sum(c_total)", "time", unix(now)}},
		{4, []string{"/api/v1/query_range", "query", "sum(c_total)", "start", unix(now.Add(-2 * time.Minute)), "end", unix(now.Add(-30 * time.Second)), "step", "30"}},
	} {
		before := n.number(`lightmetrics_query_region_samples_total{region="us"}`)
		e := n.get(c.ask[0], c.ask[1:]...)
		came := n.number(`lightmetrics_query_region_samples_total{region="us"}`) - before
		// Of each run the last sample comes, whatever follows it.
		if came > c.times+1 || came == 0 {
			t.Errorf("%v: %v samples for %v times", c.ask, came, c.times)
		}
		// Each region alone is half of it: they have the same values.
		both, one := e.results(t), n.get(c.ask[0], append(c.ask[1:], "regions", "local")...).results(t)
		if len(both) == 0 || len(both) != len(one) {
			t.Errorf("%v: %v, of one region %v", c.ask, both, one)
		}
		for k, v := range both {
			if w := one[k]; len(w) == 0 || v[len(v)-1] != 2*w[len(w)-1] {
				t.Errorf("%s: %v, of one region %v", k, v, w)
			}
		}
	}
}

// TestWhoMayReadForAnotherRegion: the caller of the other region must have the role; what its region does not know of it is
// refused; and only services may ask.
func TestWhoMayReadForAnotherRegion(t *testing.T) {
	f, _ := two(t, nil)
	conn, err := rpc.Dial(f.nodes["us"].GRPCAddr(), rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	good := func() *queryv1.OpenRegion {
		return &queryv1.OpenRegion{Version: 1, Region: "us", CallerRegion: "eu", AgentLabel: "agent", Caller: &queryv1.Caller{Principal: "p", Roles: []string{"reader"}}}
	}
	sel := func() *queryv1.ReadRequest {
		return &queryv1.ReadRequest{Request: 2, Ask: &queryv1.ReadRequest_Select{Select: &queryv1.SelectSeries{
			Matchers: []*queryv1.LabelMatcher{{Type: queryv1.LabelMatcher_TYPE_EQUAL, Name: "__name__", Value: "up"}}, EndUnixMs: time.Now().UnixMilli() + 1000}}}
	}
	list := func() *queryv1.ReadRequest {
		return &queryv1.ReadRequest{Request: 2, Ask: &queryv1.ReadRequest_Agents{Agents: &queryv1.SelectAgents{Limit: 5}}}
	}
	for name, c := range map[string]struct {
		change func(o *queryv1.OpenRegion)
		ask    func() *queryv1.ReadRequest
		code   codes.Code
		reason string
	}{
		"a reader":           {func(*queryv1.OpenRegion) {}, sel, codes.OK, ""},
		"a reader's list":    {func(*queryv1.OpenRegion) {}, list, codes.OK, ""},
		"an operator":        {func(o *queryv1.OpenRegion) { o.Caller.Roles = []string{"operator"} }, sel, codes.PermissionDenied, rpc.ReasonForbidden},
		"an operator's list": {func(o *queryv1.OpenRegion) { o.Caller.Roles = []string{"operator"} }, list, codes.OK, ""},
		"nobody":             {func(o *queryv1.OpenRegion) { o.Caller = nil }, list, codes.PermissionDenied, rpc.ReasonForbidden},
		"a sender":           {func(o *queryv1.OpenRegion) { o.Caller.Roles = []string{"sender", "worker", "king"} }, list, codes.PermissionDenied, rpc.ReasonForbidden},
		"a restriction":      {func(o *queryv1.OpenRegion) { o.Caller.Restrictions = []string{"agents=web-*"} }, list, codes.PermissionDenied, rpc.ReasonForbidden},
		"another region":     {func(o *queryv1.OpenRegion) { o.Region = "ap" }, list, codes.FailedPrecondition, "REGION_MISMATCH"},
		"itself":             {func(o *queryv1.OpenRegion) { o.CallerRegion = "us" }, list, codes.FailedPrecondition, "REGION_MISMATCH"},
		"another label":      {func(o *queryv1.OpenRegion) { o.AgentLabel = "host" }, list, codes.FailedPrecondition, "REGION_MISMATCH"},
		"another version":    {func(o *queryv1.OpenRegion) { o.Version = 2 }, list, codes.FailedPrecondition, "REGION_VERSION"},
		"nothing":            {func(*queryv1.OpenRegion) {}, func() *queryv1.ReadRequest { return &queryv1.ReadRequest{Request: 2} }, codes.Unimplemented, "REGION_VERSION"},
		"the same number": {func(*queryv1.OpenRegion) {}, func() *queryv1.ReadRequest {
			r := list()
			r.Request = 1
			return r
		}, codes.InvalidArgument, rpc.ReasonInvalidArgument},
		"a bad pattern": {func(*queryv1.OpenRegion) {}, func() *queryv1.ReadRequest {
			r := sel()
			r.GetSelect().Matchers[0] = &queryv1.LabelMatcher{Type: queryv1.LabelMatcher_TYPE_REGEXP, Name: "a", Value: "("}
			return r
		}, codes.InvalidArgument, rpc.ReasonInvalidArgument},
		"no such matcher": {func(*queryv1.OpenRegion) {}, func() *queryv1.ReadRequest {
			r := sel()
			r.GetSelect().Matchers[0].Type = 99
			return r
		}, codes.InvalidArgument, rpc.ReasonInvalidArgument},
		"a bad call": {func(*queryv1.OpenRegion) {}, func() *queryv1.ReadRequest {
			r := sel()
			r.GetSelect().Call = &queryv1.RangeCall{Function: "rate", RangeMs: 60_000, EndUnixMs: 1 << 50, StepMs: 1}
			return r
		}, codes.InvalidArgument, rpc.ReasonInvalidArgument},
		"too many agents": {func(*queryv1.OpenRegion) {}, func() *queryv1.ReadRequest {
			r := list()
			r.GetAgents().Limit = 5000
			return r
		}, codes.InvalidArgument, rpc.ReasonInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := queryv1.NewRegionServiceClient(conn).Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			o := good()
			c.change(o)
			// A stream that was refused may have ended before.
			_ = stream.Send(&queryv1.ReadRequest{Request: 1, Ask: &queryv1.ReadRequest_Open{Open: o}})
			_ = stream.Send(c.ask())
			_ = stream.CloseSend()
			done := false
			for {
				var msg *queryv1.ReadResponse
				if msg, err = stream.Recv(); err != nil {
					break
				}
				done = done || msg.GetDone() != nil
			}
			if c.code == codes.OK {
				if !errors.Is(err, io.EOF) || !done {
					t.Errorf("%v, done %t", err, done)
				}
				return
			}
			if status.Code(err) != c.code || rpc.Reason(err) != c.reason || done {
				t.Errorf("%v %s", err, rpc.Reason(err))
			}
		})
	}
}

// TestSettingsOfRegions: what can't be is refused at the start.
func TestSettingsOfRegions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *query.Config)
		want   string
	}{
		"no name of its own": {func(c *query.Config) { c.Region = "" }, "region"},
		"its own name":       {func(c *query.Config) { c.Regions[0].Name = "eu" }, "regions[0].name"},
		"twice":              {func(c *query.Config) { c.Regions = append(c.Regions, c.Regions[0]) }, "regions[1].name"},
		"a word":             {func(c *query.Config) { c.Region = "local" }, "region"},
		"upper case":         {func(c *query.Config) { c.Regions[0].Name = "US" }, "regions[0].name"},
		"no port":            {func(c *query.Config) { c.Regions[0].Endpoint = "query.us" }, "regions[0].endpoint"},
		"a token in clear":   {func(c *query.Config) { c.Regions[0].Client.Token = "x" }, "regions[0].client"},
		"default":            {func(c *query.Config) { c.Fanout.Default = "some" }, "fanout.default"},
		"no time":            {func(c *query.Config) { c.Fanout.Timeout = 0 }, "fanout"},
		"good":               {func(*query.Config) {}, ""},
	} {
		cfg := query.DefaultConfig()
		cfg.Region, cfg.Regions = "eu", []query.RegionConfig{{Name: "us", Endpoint: "127.0.0.1:4761"}}
		c.change(&cfg)
		err := cfg.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTokensOfAllRegions: whichever region's collector gave a position, the query waits for what is there; one that none gave is
// refused, unless a region could not be asked.
func TestTokensOfAllRegions(t *testing.T) {
	now := time.Now()
	f := newFleet(t, []string{"eu", "us"}, time.Now, nil, func(_ string, c *query.Config) { slowPolls(c) })
	writers := map[string]*writer{}
	for _, name := range f.names {
		writers[name] = f.auths[name].writer("c-"+name, journal.RoleCollector)
	}
	n := f.nodes["eu"]
	c := client(t, n)
	for i := range 3 {
		var tokens []string
		for k, name := range f.names {
			at := writers[name].accept(f.auths[name].build(identity.Boot{Agent: name, Boot: "b"}, uint64(1+i), now, point{"up", 1, now.Add(time.Duration(2*i+k-20) * time.Second)}))
			tokens = append(tokens, at.String())
		}
		want := fmt.Sprint(2 * (i + 1))
		e := n.get("/api/v1/query", "query", "sum(count_over_time(up[1m]))", "min_token", tokens[0], "min_token", tokens[1])
		if e.value() != want || e.Lightmetrics.Partial {
			t.Errorf("both: %s, want %s; %s %+v", e.value(), want, e.Error, e.Lightmetrics)
		}
		resp, err := c.Query(t.Context(), &queryv1.QueryRequest{Expression: "sum(count_over_time(up[1m]))", MinTokens: tokens[1:], Regions: []string{"us"}})
		if err != nil || resp.GetSeries()[0].GetPoints()[0].GetValue() != float64(i+1) {
			t.Errorf("of the other: %v %v", resp, err)
		}
	}
	never := journal.Position{Run: journal.RunID{1, 2}, Segment: 3}.String()
	for _, regions := range []string{"all", "local", "us"} {
		if e := n.get("/api/v1/query", "query", "1", "min_token", never, "regions", regions); e.code != 400 || !strings.Contains(e.Error, "TOKEN_UNKNOWN") {
			t.Errorf("%s: %d %s", regions, e.code, e.Error)
		}
	}
	// It may be of the region that is away.
	g := newFleetAt(t, &fleet{names: f.names, auths: f.auths, net: &network{addr: map[string]string{}}}, "eu")
	if e := g.get("/api/v1/query", "query", "sum(up)", "min_token", never); e.Status != "success" || e.region("us").Reason != "UNREACHABLE" {
		t.Errorf("%d %s %+v", e.code, e.Error, e.Lightmetrics)
	}
	// Strong is so in each region.
	for k, name := range f.names {
		writers[name].accept(f.auths[name].build(identity.Boot{Agent: name, Boot: "b"}, 9, now, point{"up", 1, now.Add(time.Duration(k-3) * time.Second)}))
	}
	if e := n.get("/api/v1/query", "query", "sum(count_over_time(up[1m]))", "consistency", "strong"); e.value() != "8" || e.Lightmetrics.Partial {
		t.Errorf("strong: %s %+v %s", e.value(), e.Lightmetrics, e.Error)
	}
}

// TestCredentialsBetweenRegions: a node asks another region with its own token, for the principal that asks it, over HTTP, JSON
// and gRPC alike; a token that is not known there is a region that refuses.
func TestCredentialsBetweenRegions(t *testing.T) {
	file := t.TempDir() + "/principals.yaml"
	line := func(name, roles string) string {
		return fmt.Sprintf("- {name: %s, token_sha256: %s, roles: [%s]}\n", name, identity.Sum([]byte(name)).String(), roles)
	}
	if err := os.WriteFile(file, []byte("principals:\n"+line("grafana", "reader")+line("alice", "operator")+line("nodes", "worker")), 0o600); err != nil {
		t.Fatal(err)
	}
	token := "nodes"
	f, _ := two(t, func(_ string, c *query.Config) {
		c.Auth = rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: file}
		c.Regions[0].Client = rpc.ClientConfig{Token: config.Secret(token), TokenOverPlaintext: true}
	})
	get := func(n *node, as, path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+as)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	eu := f.nodes["eu"]
	for _, c := range []struct{ as, path, want string }{
		{"grafana", "/api/v1/query?query=sum(up)", `"2"`},
		{"grafana", "/v1/query?expression=sum(up)&require_complete=true", `"value":2`},
		{"grafana", "/v1/agents", `"agent_id":"host-us"`},
		{"alice", "/v1/agents", `"agent_id":"host-us"`},
		{"alice", "/v1/conflicts", `"region":"us"`},
		{"alice", "/status", "<td>us</td>"},
	} {
		if code, body := get(eu, c.as, c.path); code != http.StatusOK || !strings.Contains(strings.ReplaceAll(body, " ", ""), c.want) || strings.Contains(body, "REFUSED") {
			t.Errorf("%s %s: %d %s", c.as, c.path, code, body)
		}
	}
	if code, _ := get(eu, "alice", "/api/v1/query?query=up"); code != http.StatusForbidden {
		t.Errorf("an operator reads samples: %d", code)
	}
	// With the token of somebody who may not, or whom nobody knows.
	for _, token = range []string{"grafana", "stranger"} {
		g, _ := two(t, func(_ string, c *query.Config) {
			c.Auth = rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: file}
			c.Regions[0].Client = rpc.ClientConfig{Token: config.Secret(token), TokenOverPlaintext: true}
		})
		if code, body := get(g.nodes["eu"], "grafana", "/api/v1/query?query=sum(up)"); code != http.StatusOK || !strings.Contains(body, `"reason":"REFUSED"`) || !strings.Contains(body, `"1"`) {
			t.Errorf("%s: %d %s", token, code, body)
		}
	}
}
