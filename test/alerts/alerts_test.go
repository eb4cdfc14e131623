// Package alerts plays the alert rules of deploy/alerts.
package alerts

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

var root = filepath.Join("..", "..")

func rules(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	path := filepath.Join(root, "deploy", "alerts", "lightmetrics.yaml")
	groups, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil {
		t.Fatal("no groups")
	}
	out := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			out[r.Alert] = r
		}
	}
	return out
}

// Each rule has a page, the index names it, and its metrics are in the code.
func TestEveryAlertHasAPageAndAMetric(t *testing.T) {
	index, err := os.ReadFile(filepath.Join(root, "docs", "runbook", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, dir := range []string{"ingest", "rollup", "reconciler", "coordinator"} {
		files, err := filepath.Glob(filepath.Join(root, "services", dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(b)
		}
	}
	metric := regexp.MustCompile(`lightmetrics_(ingest|rollup|reconciler|coordinator)_([a-z_]+)`)
	for name, r := range rules(t) {
		page := r.Annotations["runbook"]
		b, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.HasPrefix(string(b), "# "+name+"\n") || !strings.Contains(string(index), "| "+name+" | ["+strings.TrimSuffix(filepath.Base(page), ".md")+"]") {
			t.Errorf("%s: the page is another's, or the index lacks it", name)
		}
		if r.Annotations["summary"] == "" || r.Labels["severity"] == "" {
			t.Errorf("%s has no summary or severity", name)
		}
		for _, m := range metric.FindAllStringSubmatch(r.Expr, -1) {
			if !strings.Contains(code.String(), `"`+m[2]+`"`) {
				t.Errorf("%s: no service has %s", name, m[0])
			}
		}
	}
}

// Every rule fires on what it is for, and is silent where all is well.
func TestAlertsFire(t *testing.T) {
	played := map[string]struct{ bad, good string }{
		"RollupBehind":           {`lightmetrics_rollup_lag_seconds{shard="0001"} 7201x120`, `lightmetrics_rollup_lag_seconds{shard="0001"} 0x60 3000x60`},
		"RollupDamaged":          {`lightmetrics_rollup_damaged_total{what="record"} 0x110 1x10`, `lightmetrics_rollup_damaged_total{what="record"} 3x120`},
		"RollupConservation":     {`lightmetrics_rollup_conservation_failures_total 0x100 1x20`, `lightmetrics_rollup_conservation_failures_total 1x120`},
		"RollupUnreadableFrames": {`lightmetrics_rollup_unreadable_frames_total 0x100 5x20`, `lightmetrics_rollup_unreadable_frames_total 5x120`},
		"RollupFenced": {`lightmetrics_rollup_publications_refused_total{reason="fenced"} 0+1x120`,
			`lightmetrics_rollup_publications_refused_total{reason="exists"} 0+1x120`},
		"RollupPublicationsFail": {`lightmetrics_rollup_publications_refused_total{reason="undecided"} 0+1x120`,
			`lightmetrics_rollup_publications_refused_total{reason="conflict"} 0+1x120`},
		"RollupPutOff":       {`lightmetrics_rollup_put_off_batches{shard="0001",why="stuck"} 3x120`, `lightmetrics_rollup_put_off_batches{shard="0001",why="stuck"} 0x120`},
		"RollupAgentAside":   {`lightmetrics_rollup_agent_hours_aside{shard="0001"} 1x120`, `lightmetrics_rollup_agent_hours_aside{shard="0001"} 1x100 0x20`},
		"RollupWorkerKilled": {`lightmetrics_rollup_jobs_died_total 0x90 2x30`, `lightmetrics_rollup_jobs_died_total 3x120`},
		"RollupSegmentsUnreadable": {`lightmetrics_rollup_intake_segments_total{what="corrupt"} 0x100 1x20`,
			`lightmetrics_rollup_intake_segments_total{what="read"} 0+9x120`},
		"RollupMaintenanceFails": {`lightmetrics_rollup_maintenance_failures_total{what="compaction"} 0+1x120`,
			`lightmetrics_rollup_maintenance_failures_total{what="compaction"} 0x100 1x20`},
		"RollupOrdersFail": {"lightmetrics_rollup_orders_total{outcome=\"failed\"} 0+1x120\n  lightmetrics_rollup_orders_pending{shard=\"0001\"} 1x120",
			"lightmetrics_rollup_orders_total{outcome=\"failed\"} 0+1x120\n  lightmetrics_rollup_orders_pending{shard=\"0001\"} 0x120"},
		"IngestOutOfBounds": {`lightmetrics_ingest_batches_total{outcome="rejected",reason="SERIES_LIMIT"} 0x100 1x20`,
			"lightmetrics_ingest_batches_total{outcome=\"accepted\",reason=\"\"} 0+9x120\n  lightmetrics_ingest_batches_total{outcome=\"rejected\",reason=\"BAD_MAGIC\"} 0+1x120"},
		"IngestClockBehind":          {`lightmetrics_ingest_clock_behind_seconds{instance="a"} -90x120`, `lightmetrics_ingest_clock_behind_seconds{instance="a"} -2x120`},
		"ReconcilerBehind":           {`lightmetrics_reconciler_complete_through_timestamp_seconds 0x120`, `lightmetrics_reconciler_complete_through_timestamp_seconds 0+60x120`},
		"ReconcilerRepairsOpen":      {`lightmetrics_reconciler_open_repairs 1x120`, `lightmetrics_reconciler_open_repairs 0x120`},
		"ReconcilerIntakeFails":      {`lightmetrics_reconciler_intake_failures_total 0+1x120`, `lightmetrics_reconciler_intake_failures_total 7x120`},
		"ReconcilerForeignKeys":      {`lightmetrics_reconciler_foreign_keys_total{family="accepted"} 0x100 1x20`, `lightmetrics_reconciler_foreign_keys_total{family="accepted"} 1x120`},
		"AgentIDShared":              {`lightmetrics_reconciler_shared_agent_ids{instance="a"} 1x120`, `lightmetrics_reconciler_shared_agent_ids{instance="a"} 0x120`},
		"CoordinatorEtcdDown":        {`lightmetrics_coordinator_etcd_up{instance="a"} 0x120`, "lightmetrics_coordinator_etcd_up{instance=\"a\"} 0x120\n  lightmetrics_coordinator_etcd_up{instance=\"b\"} 1x120"},
		"CoordinatorNotLeading":      {"lightmetrics_coordinator_leading{instance=\"a\"} 0x120\n  lightmetrics_coordinator_leading{instance=\"b\"} 0x120", "lightmetrics_coordinator_leading{instance=\"a\"} 1x120\n  lightmetrics_coordinator_leading{instance=\"b\"} 0x120"},
		"CoordinatorShardsMisplaced": {`lightmetrics_coordinator_misplaced_shards{kind="rollup"} 2x120`, `lightmetrics_coordinator_misplaced_shards{kind="rollup"} 2x100 0x20`},
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	t.Cleanup(func() { _ = engine.Close() })
	all := rules(t)
	for name, r := range all {
		p, ok := played[name]
		if !ok {
			t.Errorf("%s is not played", name)
			continue
		}
		for _, c := range []struct {
			series string
			fires  bool
		}{{p.bad, true}, {p.good, false}} {
			if got := fires(t, engine, r, c.series); got != c.fires {
				t.Errorf("%s fires %v, want %v, of\n%s", name, got, c.fires, c.series)
			}
		}
	}
	if len(all) != len(played) {
		t.Errorf("%d rules, %d played", len(all), len(played))
	}
}

// fires reports whether the rule holds at minute 120 and at every minute of its "for" before.
func fires(t *testing.T, engine *promql.Engine, r rulefmt.Rule, series string) bool {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n  "+series+"\n")
	t.Cleanup(func() { _ = storage.Close() })
	at := time.Unix(120*60, 0)
	for back := time.Duration(0); back <= time.Duration(r.For); back += time.Minute {
		q, err := engine.NewInstantQuery(context.Background(), storage, nil, r.Expr, at.Add(-back))
		if err != nil {
			t.Fatal(err)
		}
		v, err := q.Exec(context.Background()).Vector()
		n := len(v)
		q.Close()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return false
		}
	}
	return true
}
