package query_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/query"
)

// network connects query nodes by names, which are there before the nodes listen.
type network struct {
	mu   sync.Mutex
	addr map[string]string // by the endpoint in settings
}

// endpoint of a region, as its peers' settings have it.
func endpoint(region string) string {
	port := 1
	for _, c := range region {
		port = port*31%10_000 + int(c)
	}
	return "127.0.0.1:" + strconv.Itoa(port)
}

func (w *network) set(region, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addr[endpoint(region)] = addr
}

func (w *network) dial() []grpc.DialOption {
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
		w.mu.Lock()
		addr := w.addr[to]
		w.mu.Unlock()
		if addr == "" {
			return nil, fmt.Errorf("nobody is at %s", to)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	})}
}

// fleet is a query node in each of several regions.
type fleet struct {
	t     testing.TB
	net   *network
	names []string
	nodes map[string]*node
	auths map[string]*authority
}

// newFleet starts the regions. Each has a bucket of its own, which fill gets first.
func newFleet(t testing.TB, names []string, now func() time.Time, fill func(region string, a *authority), change func(region string, c *query.Config)) *fleet {
	t.Helper()
	f := &fleet{t: t, net: &network{addr: map[string]string{}}, names: names, nodes: map[string]*node{}, auths: map[string]*authority{}}
	for _, name := range names {
		f.auths[name] = newAuthority(t)
		if fill != nil {
			fill(name, f.auths[name])
		}
		f.start(name, now, change)
	}
	for _, n := range f.nodes {
		<-n.Complete()
		<-n.BlocksRead()
	}
	return f
}

func (f *fleet) start(name string, now func() time.Time, change func(region string, c *query.Config)) {
	f.t.Helper()
	n := startWith(f.t, f.auths[name], query.Deps{Now: now, DialRegions: f.net.dial()}, func(c *query.Config) {
		c.Region = claims.Region(name)
		for _, other := range f.names {
			if other != name {
				c.Regions = append(c.Regions, query.RegionConfig{Name: claims.Region(other), Endpoint: endpoint(other)})
			}
		}
		// The machine may be busy, and what is late is another test's.
		c.Fanout.Timeout = time.Minute
		if change != nil {
			change(name, c)
		}
	})
	f.nodes[name] = n
	f.net.set(name, n.GRPCAddr())
}

// startWith has further dependencies.
func startWith(t testing.TB, a *authority, d query.Deps, change func(*query.Config)) *node {
	t.Helper()
	cfg := query.DefaultConfig()
	cfg.HTTP.Listen, cfg.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Follow.PollInterval, cfg.Follow.RetryInterval = 20*time.Millisecond, 20*time.Millisecond
	change(&cfg)
	d.Store, d.Telemetry = a, telemetry.Discard()
	s, err := query.New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return &node{s, t, "http://" + s.HTTPAddr()}
}

// regionOf is one region in the completeness of an answer.
type regionOf struct {
	Region, Reason, Detail string
	Answered, Partial      bool
	CompleteThrough        string `json:"complete_through"`
	Reasons                []string
}

// region of an answer.
func (e envelope) region(name string) (r regionOf) {
	for _, r := range e.Lightmetrics.Regions {
		if r.Region == name {
			return r
		}
	}
	return regionOf{}
}

// results of a vector or matrix, by series and time; a histogram as all of its numbers.
func (e envelope) results(t testing.TB) map[string][]float64 {
	t.Helper()
	var d struct {
		ResultType string
		Result     []struct {
			Metric             map[string]string
			Value, Histogram   []json.RawMessage
			Values, Histograms [][]json.RawMessage
		}
	}
	if err := json.Unmarshal(e.Data, &d); err != nil {
		t.Fatalf("%v: %s", err, e.Data)
	}
	out := map[string][]float64{}
	for _, s := range d.Result {
		key := ""
		for _, name := range slices.Sorted(maps.Keys(s.Metric)) {
			key += name + "=" + s.Metric[name] + ","
		}
		add := func(kind string, p []json.RawMessage) {
			out[fmt.Sprint(key, kind, string(p[0]))] = numbers(t, p[1])
		}
		for _, p := range append(s.Values, s.Value) {
			if p != nil {
				add("v", p)
			}
		}
		for _, p := range append(s.Histograms, s.Histogram) {
			if p != nil {
				add("h", p)
			}
		}
	}
	return out
}

// numbers of a value, in their order.
func numbers(t testing.TB, raw json.RawMessage) (out []float64) {
	t.Helper()
	for _, text := range strings.FieldsFunc(string(raw), func(r rune) bool { return strings.ContainsRune(`"[]{}:,`, r) }) {
		if v, err := strconv.ParseFloat(text, 64); err == nil {
			out = append(out, v)
		}
	}
	return out
}

// differs is the first difference; empty when there is none but rounding.
func differs(got, want map[string][]float64) string {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		g, ok := got[k]
		if !ok || len(g) != len(want[k]) {
			return fmt.Sprintf("%s is %v, want %v", k, g, want[k])
		}
		for i, w := range want[k] {
			if v := g[i]; v != w && !(math.IsNaN(v) && math.IsNaN(w)) && math.Abs(v-w) > 1e-11*max(math.Abs(v), math.Abs(w), 1) {
				return fmt.Sprintf("%s is %v, want %v", k, g, want[k])
			}
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			return k + " is there and should not be"
		}
	}
	return ""
}

// scattered gives the batches of a corpus to regions: some agents stay, some fail over once, some go to and fro.
func scattered(c *corpus, names []string, rnd *rand.Rand) map[string]*corpus {
	out := map[string]*corpus{}
	for _, name := range names {
		out[name] = &corpus{}
	}
	seen := map[string]int{}
	for i, b := range c.builts {
		agent := b.manifest.Identity.Agent
		k := seen[agent]
		seen[agent]++
		home := names[0]
		switch agent {
		case "host0":
			home = names[k/20%len(names)] // some hours each
		case "host1":
			home = names[1]
		case "host2":
			if home = names[len(names)-1]; k > 60 {
				home = names[rnd.IntN(len(names))]
			}
		}
		out[home].builts, out[home].batches = append(out[home].builts, b), append(out[home].batches, c.batches[i])
	}
	return out
}

// TestRegionsAnswerAsOneNode: expressions over three regions, asked at each of them, give what one node gives that has all
// batches: over memory, over blocks, and over ranges that rolled rows answer.
func TestRegionsAnswerAsOneNode(t *testing.T) {
	for _, seed := range []uint64{1, 2} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 79))
			end := time.Now().Truncate(time.Hour).Add(20 * time.Minute)
			now := func() time.Time { return end.Add(time.Second) }
			c := newCorpus(t, rnd, end.Add(-6*time.Hour), end)
			names := []string{"ap", "eu", "us"}
			of := scattered(c, names, rnd)
			fill := func(c *corpus) func(a *authority) {
				return func(a *authority) {
					a.rollups()
					a.accept(c.builts...)
					for _, h := range publishedtest.Hours(c.batches) {
						// The last hours are in memory.
						if h < timegrid.HourOf(end.UnixMilli())-1 {
							a.publish(h, 1, c.batches)
						}
					}
				}
			}
			f := newFleet(t, names, now, func(region string, a *authority) { fill(of[region])(a) }, nil)
			whole := newAuthority(t)
			fill(c)(whole)
			one := startAt(t, whole, now, nil)
			<-one.Complete()
			<-one.BlocksRead()

			values, histograms := 0, 0
			ask := func(path string, params ...string) {
				t.Helper()
				want := one.get(path, params...)
				if want.Status != "success" {
					t.Fatalf("%v: %s", params, want.Error)
				}
				w := want.results(t)
				for k := range w {
					if values++; strings.Contains(k, "h1") {
						histograms++
					}
				}
				for _, name := range names {
					got := f.nodes[name].get(path, params...)
					if got.Status != "success" {
						t.Errorf("%s %v: %s", name, params, got.Error)
						continue
					}
					if d := differs(got.results(t), w); d != "" {
						t.Errorf("%s %v: %s", name, params, d)
					}
					if got.Lightmetrics.Partial != want.Lightmetrics.Partial || len(got.Lightmetrics.Regions) != len(names) {
						t.Errorf("%s %v: %+v", name, params, got.Lightmetrics)
					}
				}
			}
			sec := func(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }
			for i, expr := range rollupExpressions {
				ask("/api/v1/query", "query", expr, "time", sec(end.Add(-time.Duration(rnd.IntN(4*3600))*time.Second)))
				from := end.Add(-time.Duration(rnd.IntN(5*3600)) * time.Second)
				ask("/api/v1/query_range", "query", expr, "start", sec(from), "end", sec(end), "step", strconv.Itoa(60+rnd.IntN(300)))
				// Aligned, so that rows may answer.
				w := []time.Duration{time.Minute, 5 * time.Minute, time.Hour}[i%3]
				from = end.Add(-4 * time.Hour).Truncate(w)
				ask("/api/v1/query_range", "query", expr, "start", sec(from), "end", sec(end.Truncate(w)), "step", strconv.Itoa(int(w.Seconds())))
			}
			t.Logf("%d values, %d of histograms", values, histograms)
			if values < 5000 || histograms < 150 {
				t.Error("too little was compared")
			}
		})
	}
}
