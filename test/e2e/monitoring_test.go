package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs/sqstest"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
)

// onlyAfter are selectors of alerts without data in a healthy cluster, and why.
var onlyAfter = map[string]string{
	`lightmetrics_tls_certificate_expiry_timestamp_seconds`:          "the cluster has no TLS",
	`lightmetrics_agent_client_certificate_expiry_timestamp_seconds`: "the cluster has no TLS",
	// These begin with a fault. The rules of the last three fire on a series that is new.
	`lightmetrics_ingest_batches_total{outcome="retry",reason!="DRAINING"}`:                                                            "nothing is tried again",
	`lightmetrics_store_requests_total{outcome=~"unknown|unavailable|checksum|denied|no_bucket|invalid|deadline|error"}`:               "the store answers",
	`lightmetrics_objectstore_requests_total{status=~"5.."}`:                                                                           "the store answers",
	`lightmetrics_rollup_maintenance_failures_total`:                                                                                   "compaction and retention succeed",
	`lightmetrics_ingest_batches_total{outcome="rejected",reason!~"SERIES_LIMIT|BATCH_SERIES_LIMIT|LABEL_BYTES_LIMIT|TIME_IN_FUTURE"}`: "no frame is refused",
	`lightmetrics_reconciler_foreign_keys_total`:                                                                                       "nobody else writes to the bucket",
}

// TestMonitoringOfARunningSystem: with the jobs that the guide shows, every panel of the
// dashboard has data and every alert's selectors do, of a system that runs; no alert of
// one that is well holds; metadata has the HELP of what is scraped.
func TestMonitoringOfARunningSystem(t *testing.T) {
	t.Parallel()
	ctx := within(t, 4*time.Minute)
	// Nobody in a cluster needs the store's events; they are sent, to the reconciler's webhook, so that the panels of events have
	// data. The queues are empty.
	var reconciler atomic.Pointer[string]
	events := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, code := reconciler.Load(), http.StatusServiceUnavailable
		if to != nil {
			if resp, err := http.Post(*to, "application/json", r.Body); err == nil {
				resp.Body.Close()
				code = resp.StatusCode
			}
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(events.Close)
	queues := sqstest.Start(t)
	// The store is on two drives and two places, and has a quota, so that the panels of these have data.
	mirror, places := t.TempDir(), []map[string]any{{"name": "one", "dir": t.TempDir()}, {"name": "two", "dir": t.TempDir()}}
	c := newCluster(t, cluster.Options{Collectors: 1, Rollups: 1, Shards: 2, Adjust: func(process string, s map[string]any) {
		switch process {
		case "objectstore":
			s["webhooks"] = []map[string]any{{"name": "accepted", "bucket": "lightmetrics", "prefix": "accepted/v1/", "url": events.URL}}
			s["mirrors"], s["places"], s["ack_copies"] = []string{mirror}, places, 1
			s["quotas"] = []map[string]any{{"bucket": "lightmetrics", "bytes": "1TiB"}}
		case "reconciler", "query":
			s["events"] = map[string]any{"webhook": true, "queue": map[string]any{"url": queues.QueueURL(process)}}
		}
	}})
	scrapeEverything(t, c)
	must(t, c.StartStore(ctx))
	must(t, c.StartCoordinator(ctx))
	must(t, c.StartReconciler(ctx))
	hook := "http://" + c.Addr.ReconcilerHTTP + "/v1/events"
	reconciler.Store(&hook)
	must(t, c.StartCollector(ctx, 0))
	must(t, c.StartRollup(ctx, 0))
	must(t, c.StartQuery(ctx))
	must(t, c.StartAgent(ctx))

	panels, rules := dashboardExpressions(t), alertRules(t)
	selectors := map[string]string{} // to the alert
	for name, r := range rules {
		for _, s := range selectorsOf(t, r.Expr) {
			selectors[s] = name
		}
	}
	// A rate needs samples of two scrapes.
	empty := func() (missing []string) {
		for _, p := range slices.Sorted(maps.Keys(panels)) {
			if slices.ContainsFunc(selectorsOf(t, p), cluster.OfRegions.MatchString) {
				continue
			}
			if n, err := count(ctx, c, p); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				missing = append(missing, panels[p]+": "+p)
			}
		}
		for _, s := range slices.Sorted(maps.Keys(selectors)) {
			// A single region has none of these; test/regions reads them.
			if onlyAfter[s] != "" || cluster.OfRegions.MatchString(s) {
				continue
			}
			if n, err := count(ctx, c, s); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				missing = append(missing, selectors[s]+": "+s)
			}
		}
		return missing
	}
	var missing []string
	patience := within(t, 90*time.Second)
	_ = cluster.Poll(patience, "data of every expression", func() (bool, error) {
		missing = empty()
		return len(missing) == 0, nil
	})
	for _, m := range missing {
		t.Errorf("no data: %s", m)
	}
	for s := range onlyAfter {
		if selectors[s] == "" {
			t.Errorf("%s is excused and no alert has it", s)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		v, _, err := c.Instant(ctx, rules[name].Expr, time.Now())
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if len(v) > 0 {
			t.Errorf("%s holds in a healthy system: %v", name, v)
		}
	}
	checkHelps(t, ctx, c)
}

// scrapeEverything has the agent scrape every service and itself under the jobs of the
// guide's scrape configuration.
func scrapeEverything(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	at := map[string][]string{
		"lightmetrics-ingest": {c.Addr.Collectors[0].HTTP}, "lightmetrics-reconciler": {c.Addr.ReconcilerHTTP},
		"lightmetrics-coordinator": {c.Addr.CoordinatorHTTP}, "lightmetrics-rollup": c.Addr.Rollups,
		"lightmetrics-query": {c.Addr.QueryHTTP}, "lightmetrics-objectstore": {c.Addr.StoreAdmin}, "lightmetrics-agent": {c.Addr.AgentHTTP},
	}
	guide, err := os.ReadFile(filepath.Join("..", "..", "docs", "guide", "monitoring.md"))
	must(t, err)
	block := regexp.MustCompile("(?s)```yaml\n(scrape_configs:.*?)```").FindSubmatch(guide)
	if block == nil {
		t.Fatal("the guide has no scrape configuration")
	}
	var shown struct {
		ScrapeConfigs []struct {
			JobName string `yaml:"job_name"`
		} `yaml:"scrape_configs"`
	}
	must(t, yaml.Unmarshal(block[1], &shown))
	var targets []any
	for _, s := range shown.ScrapeConfigs {
		for _, addr := range at[s.JobName] {
			targets = append(targets, map[string]any{"job": s.JobName, "url": "http://" + addr + "/metrics"})
		}
		delete(at, s.JobName)
	}
	if len(at) > 0 {
		t.Fatalf("the guide scrapes no %v", slices.Collect(maps.Keys(at)))
	}
	path := filepath.Join(c.Dir(), "agent.yaml")
	b, err := os.ReadFile(path)
	must(t, err)
	var settings map[string]map[string]any
	must(t, yaml.Unmarshal(b, &settings))
	settings["agent"]["scrape"] = targets
	b, err = yaml.Marshal(settings)
	must(t, err)
	must(t, os.WriteFile(path, b, 0o600))
}

// dashboardExpressions reads the dashboard, with its variables as Grafana sets them for
// all instances and a step of seconds. It gives the panel of each expression.
func dashboardExpressions(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "deploy", "dashboards", "lightmetrics.json"))
	must(t, err)
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	must(t, json.Unmarshal(b, &d))
	out := map[string]string{}
	set := strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m")
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			e := set.Replace(q.Expr)
			if strings.Contains(e, "$") {
				t.Errorf("%s: a variable that the dashboard lacks: %s", p.Title, e)
			}
			out[e] = p.Title
		}
	}
	return out
}

func alertRules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(filepath.Join("..", "..", "deploy", "alerts", "lightmetrics.yaml"), false, model.UTF8Validation,
		parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil {
		t.Fatal("no rules")
	}
	out := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			out[r.Alert] = r
		}
	}
	return out
}

// selectorsOf lists the selectors of an expression, without ranges and offsets.
func selectorsOf(t *testing.T, expression string) []string {
	t.Helper()
	e, err := parser.NewParser(parser.Options{}).ParseExpr(expression)
	must(t, err)
	var out []string
	parser.Inspect(e, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			out = append(out, (&parser.VectorSelector{Name: v.Name, LabelMatchers: v.LabelMatchers}).String())
		}
		return nil
	})
	return out
}

// count asks how many series an expression gives now.
func count(ctx context.Context, c *cluster.Cluster, expression string) (int, error) {
	v, _, err := c.Instant(ctx, expression, time.Now())
	if err != nil {
		return 0, fmt.Errorf("%s: %w", expression, err)
	}
	return len(v), nil
}

// checkHelps compares the helps that Prometheus' own client gets with the HELP lines of a collector,
// which the agent scrapes, and then those of a query node that starts later.
func checkHelps(t *testing.T, ctx context.Context, c *cluster.Cluster) {
	t.Helper()
	resp, err := http.Get("http://" + c.Addr.Collectors[0].HTTP + "/metrics")
	must(t, err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	must(t, err)
	want := map[string]string{"node_load1": "Load average of 1 minute.", "up": "1 when the last scrape of the target succeeded, 0 when it failed."}
	for line := range strings.Lines(string(page)) {
		line, is := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "# HELP ")
		name, text, _ := strings.Cut(line, " ")
		if is && strings.HasPrefix(name, "lightmetrics_ingest_") && !strings.Contains(text, `\`) {
			want[name] = text
			want[name+"_bucket"] = text // if it is a histogram
		}
	}
	client, err := api.NewClient(api.Config{Address: "http://" + c.Addr.QueryHTTP})
	must(t, err)
	check := func(when string) {
		right, buckets, wrong := 0, 0, []string(nil)
		err := cluster.Poll(ctx, "helps", func() (bool, error) {
			got, err := promv1.NewAPI(client).Metadata(ctx, "", "")
			right, buckets, wrong = 0, 0, wrong[:0]
			for name, text := range want {
				switch list := got[name]; {
				case len(list) == 0: // a family without series, or the name of a histogram
				case list[0].Help != text:
					wrong = append(wrong, fmt.Sprintf("%s: %q, want %q", name, list[0].Help, text))
				case strings.HasSuffix(name, "_bucket"):
					buckets++
				default:
					right++
				}
			}
			return len(wrong) == 0 && right >= 10 && buckets > 0 && len(got["node_load1"]) == 1 && len(got["up"]) == 1, err
		})
		if err != nil {
			t.Errorf("%s: %v; %d and %d helps are right, not %v", when, err, right, buckets, wrong)
		}
	}
	check("the node that saw the batches come")
	// It reads no frame that a block or delta has: those helps are in the record of the rollup workers.
	cluster.Kill(&c.Query)
	must(t, c.StartQuery(ctx))
	check("a node that starts later")
}
