package alerts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	promparser "github.com/prometheus/prometheus/promql/parser"
)

// declaredMetrics reads the code of all services, the agent and the packages that they
// share, and gives a function that says whether one of them declares a metric. Names are
// declared whole, or as a prefix and a name within one package.
func declaredMetrics(t *testing.T) func(metric string) bool {
	t.Helper()
	literals := map[string]map[string]bool{} // by directory
	for _, top := range []string{"services", "agent", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			dir := filepath.Dir(path)
			ast.Inspect(file, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					if literals[dir] == nil {
						literals[dir] = map[string]bool{}
					}
					s, _ := strconv.Unquote(l.Value) // the parser has read it
					literals[dir][s] = true
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	exact := func(metric string) bool {
		for _, in := range literals {
			if in[metric] && !strings.HasSuffix(metric, "_") {
				return true
			}
			for l := range in {
				if rest, ok := strings.CutPrefix(metric, l); ok && rest != "" && strings.HasPrefix(l, "lightmetrics_") && in[rest] {
					return true
				}
			}
		}
		return false
	}
	return func(metric string) bool {
		// The collector's own metrics of the scrape, and those of its Go runtime.
		if metric == "up" || strings.HasPrefix(metric, "process_") || strings.HasPrefix(metric, "go_") {
			return true
		}
		for _, part := range []string{"", "_bucket", "_count", "_sum"} {
			if whole, ok := strings.CutSuffix(metric, part); ok && exact(whole) {
				return true
			}
		}
		return false
	}
}

// metricsOf lists the metrics that an expression names.
func metricsOf(t *testing.T, expression string) []string {
	t.Helper()
	e, err := promparser.NewParser(promparser.Options{}).ParseExpr(expression)
	if err != nil {
		t.Errorf("%s: %v", expression, err)
		return nil
	}
	var out []string
	promparser.Inspect(e, func(n promparser.Node, _ []promparser.Node) error {
		v, ok := n.(*promparser.VectorSelector)
		if !ok {
			return nil
		}
		i := slices.IndexFunc(v.LabelMatchers, func(m *labels.Matcher) bool { return m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual })
		if i < 0 {
			t.Errorf("%s: a selector without a metric", expression)
			return nil
		}
		out = append(out, v.LabelMatchers[i].Value)
		return nil
	})
	return out
}

// A name that nobody declares is found to be none.
func TestDeclaredMetrics(t *testing.T) {
	declared := declaredMetrics(t)
	for metric, want := range map[string]bool{
		"lightmetrics_ready": true, "lightmetrics_ingest_ack_duration_seconds_bucket": true, "lightmetrics_agent_lag_seconds": true,
		"lightmetrics_rollup_snapshots_committed_total": true, "lightmetrics_owner_shards": true,
		"lightmetrics_ingest_lag": false, "lightmetrics_rollup_ack_duration_seconds": false, "lightmetrics_ingest_": false, "other_total": false,
	} {
		if got := declared(metric); got != want {
			t.Errorf("%s: declared %v, want %v", metric, got, want)
		}
	}
}

// Pages of the runbook, the page on monitoring and the dashboard name metrics that there are.
func TestRunbookNamesMetricsThatExist(t *testing.T) {
	declared := declaredMetrics(t)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "runbook", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("lightmetrics_[a-z0-9_]*[a-z0-9]")
	for _, page := range append(pages, filepath.Join(root, "docs", "guide", "monitoring.md"), filepath.Join(root, "deploy", "dashboards", "lightmetrics.json")) {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllString(string(b), -1) {
			if !declared(m) {
				t.Errorf("%s: nobody has %s", filepath.Base(page), m)
			}
		}
	}
}
