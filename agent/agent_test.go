package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/agent/input/scrape"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// deadline bounds every wait of these tests; nothing is timed.
const deadline = time.Minute

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func testConfig(t *testing.T, collectors ...string) agent.Config {
	c := agent.DefaultConfig()
	c.AgentID = "agent/ä-1"
	c.DataDir = filepath.Join(t.TempDir(), "data")
	c.Interval = 100 * time.Millisecond
	c.Batch.MaxAge = 250 * time.Millisecond
	c.Send.Collectors = collectors
	c.Send.BackoffInitial, c.Send.BackoffMax = 5*time.Millisecond, 50*time.Millisecond
	c.HTTP.Listen = "127.0.0.1:0"
	return c
}

func start(t *testing.T, cfg agent.Config) (*agent.Agent, func()) {
	t.Helper()
	a, err := agent.New(cfg, agent.Deps{Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	<-a.Ready()
	return a, stop
}

func collector(t *testing.T, c *sendtest.Collector) string {
	t.Helper()
	addr, err := c.Start("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return addr
}

// values decodes accepted frames to the last value per series, by "name{label=value,…}" of the given labels.
func values(t *testing.T, s *sendtest.Store, ids []identity.Batch, keep ...string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	d := frame.NewDecoder()
	for _, id := range ids {
		var b frame.Batch
		if err := d.Decode(s.Frame(id), &b, frame.Limits{}); err != nil {
			t.Fatal(err)
		}
		for _, g := range b.Groups {
			for i := range g.Series {
				ls := maps.Collect(b.Labels(&g.Series[i]))
				key := ls["__name__"]
				for _, k := range keep {
					if v, ok := ls[k]; ok {
						key += fmt.Sprintf(" %s=%s", k, v)
					}
				}
				out[key] = g.Values[(i+1)*len(g.Timestamps)-1]
			}
		}
	}
	return out
}

func checkContiguous(t *testing.T, ids []identity.Batch, from uint64) uint64 {
	t.Helper()
	for _, id := range ids {
		if id.SeqStart != from {
			t.Fatalf("batch %s does not begin at %d", id, from)
		}
		from = id.SeqEnd + 1
	}
	return from
}

// TestEndToEnd: host and scrape inputs, through the queue, to a collector; a restart
// continues the sequence of the same boot.
func TestEndToEnd(t *testing.T) {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "jobs_total", Help: "x"}, []string{"kind"})
	reg.MustRegister(c)
	c.WithLabelValues("a").Add(41)
	app := httptest.NewServer(promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	defer app.Close()

	store := sendtest.NewStore()
	cfg := testConfig(t, collector(t, &sendtest.Collector{Store: store}))
	cfg.Labels = map[string]string{"region": "north"}
	cfg.Scrape = []scrape.Target{{Job: "app", URL: config.URL(app.URL + "/metrics")}}
	a, stop := start(t, cfg)
	ids, err := store.Wait(testContext(t), 8)
	if err != nil {
		t.Fatal(err)
	}
	checkContiguous(t, ids, 1)
	got := values(t, store, ids, "kind", "job", "region")
	if v := got["jobs_total kind=a job=app region=north"]; v != 41 {
		t.Errorf("jobs_total is %v, want 41; have %d series", v, len(got))
	}
	if v := got["node_memory_MemTotal_bytes job=host region=north"]; v < 64<<20 {
		t.Errorf("node_memory_MemTotal_bytes is %v", v)
	}
	if v := got["up job=app region=north"]; v != 1 {
		t.Errorf("up is %v", v)
	}
	var st agent.Status
	getJSON(t, "http://"+a.HTTPAddr()+"/status", &st)
	if st.Boot.AgentID != cfg.AgentID || st.Boot.BootID != ids[0].Boot || len(st.Alerts) != 0 {
		t.Errorf("status: %+v", st)
	}
	page := getText(t, "http://"+a.HTTPAddr()+"/")
	if !strings.Contains(page, ids[0].Boot) || !strings.Contains(page, "connected") {
		t.Errorf("status page has no boot or no collector:\n%s", page)
	}
	metrics := getText(t, "http://"+a.HTTPAddr()+"/metrics")
	for _, name := range []string{"lightmetrics_agent_queue_bytes", `lightmetrics_agent_queue_batches{state="pending"}`,
		`lightmetrics_agent_batches_total{status="accepted"}`, "lightmetrics_agent_dropped_samples_total", "lightmetrics_agent_lag_seconds",
		"lightmetrics_agent_conflicts_parked 0"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics has no %s", name)
		}
	}
	stop()
	ids, _ = store.Accepted()
	next := checkContiguous(t, ids, 1)

	_, stop = start(t, cfg)
	defer stop()
	more, err := store.Wait(testContext(t), len(ids)+2)
	if err != nil {
		t.Fatal(err)
	}
	more = more[len(ids):]
	if more[0].Boot != ids[0].Boot || more[0].SeqStart != next {
		t.Errorf("after a restart: %s, want boot %s from %d on", more[0], ids[0].Boot, next)
	}
	if math.IsNaN(values(t, store, more, "job")["node_load1 job=host"]) {
		t.Error("node_load1 is NaN")
	}
}

func getText(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v\n%s", url, resp.Status, err, b)
	}
	return string(b)
}

func getJSON(t *testing.T, url string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(getText(t, url)), v); err != nil {
		t.Fatal(err)
	}
}

// A setting that can't be is refused with its path.
func TestConfigErrors(t *testing.T) {
	for want, change := range map[string]func(*agent.Config){
		"queue.policy":  func(c *agent.Config) { c.Queue.Policy = "drop_new" },
		"segment_bytes": func(c *agent.Config) { c.Queue.MaxBytes = config.Bytes(1 << 20) },
		"collectors":    func(c *agent.Config) { c.Send.Collectors = nil },
		"scrape[0]":     func(c *agent.Config) { c.Scrape = []scrape.Target{{Job: "x", URL: "ftp://x/"}} },
		"max_bytes":     func(c *agent.Config) { c.Batch.MaxBytes = 4 << 20 },
		"agent_id":      func(c *agent.Config) { c.AgentID = strings.Repeat("x", 129) },
		"are taken": func(c *agent.Config) {
			c.Scrape = []scrape.Target{{Job: "x", URL: "http://h/"}, {Job: "x", URL: "http://h/b"}}
		},
		"labels":           func(c *agent.Config) { c.Labels = map[string]string{"__name__": "x"} },
		"backoff_max":      func(c *agent.Config) { c.Send.BackoffMax = 1 },
		"data_dir":         func(c *agent.Config) { c.DataDir = "" },
		"host: job":        func(c *agent.Config) { c.Host.Job = "" },
		"interval":         func(c *agent.Config) { c.Interval = 0 },
		"timeout <= inter": func(c *agent.Config) { c.Scrape = []scrape.Target{{Job: "x", URL: "http://h/", Timeout: time.Hour}} },
	} {
		c := agent.DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	if err := agent.DefaultConfig().Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
}
