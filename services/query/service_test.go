package query_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/query"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var host = identity.Boot{Agent: "host1", Boot: "b1"}

// node is a running query node.
type node struct {
	*query.Service
	t   testing.TB
	url string
}

func start(t testing.TB, a *authority, change func(*query.Config)) *node {
	t.Helper()
	return startAt(t, a, time.Now, change)
}

// startAt has a clock of its own.
func startAt(t testing.TB, a *authority, now func() time.Time, change func(*query.Config)) *node {
	t.Helper()
	cfg := query.DefaultConfig()
	cfg.HTTP.Listen, cfg.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Follow.PollInterval, cfg.Follow.RetryInterval = 20*time.Millisecond, 20*time.Millisecond
	if change != nil {
		change(&cfg)
	}
	s, err := query.New(cfg, query.Deps{Store: a, Telemetry: telemetry.Discard(), Now: now})
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
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-s.Ready():
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return &node{s, t, "http://" + s.HTTPAddr()}
}

// envelope is an answer of the HTTP API.
type envelope struct {
	Status, ErrorType, Error string
	Data                     json.RawMessage
	Warnings, Infos          []string
	Lightmetrics             struct {
		Partial         bool
		CompleteThrough string `json:"complete_through"`
		Reasons, Notes  []string
		Missing         []struct {
			Code    string
			Batches int
			AtLeast bool `json:"at_least"`
			Hours   [][2]time.Time
			Shards  []uint32
		}
		AgentsWithGaps int `json:"agents_with_gaps"`
		Regions        []regionOf
	}
	code int
}

func (n *node) get(path string, params ...string) envelope {
	n.t.Helper()
	q := url.Values{}
	for i := 0; i < len(params); i += 2 {
		q.Add(params[i], params[i+1])
	}
	resp, err := http.Get(n.url + path + "?" + q.Encode())
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		n.t.Fatalf("%s: %v: %s", path, err, body)
	}
	e.code = resp.StatusCode
	return e
}

// polls waits for some more polls of the journal.
func (n *node) polls(more float64) {
	n.t.Helper()
	polls := func() float64 { return n.number(`lightmetrics_query_journal_polls_total{outcome="ok"}`) }
	before := polls()
	eventually(n.t, "further polls", func() bool { return polls() >= before+more })
}

// number reads a metric without labels.
func (n *node) number(name string) float64 {
	n.t.Helper()
	resp, err := http.Get(n.url + "/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if v, ok := strings.CutPrefix(line, name+" "); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				n.t.Fatal(err)
			}
			return f
		}
	}
	n.t.Fatalf("no metric %s", name)
	return 0
}

// eventually waits for a condition that the node comes to by itself.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

func (n *node) value(expr string) string {
	n.t.Helper()
	return n.get("/api/v1/query", "query", expr).value()
}

func (n *node) valueAt(expr string, at time.Time) string {
	n.t.Helper()
	return n.get("/api/v1/query", "query", expr, "time", unix(at)).value()
}

// value is that of the only series of a vector; empty when there is not one.
func (e envelope) value() string {
	var d struct {
		Result []struct{ Value [2]any }
	}
	if err := json.Unmarshal(e.Data, &d); err != nil || len(d.Result) != 1 {
		return ""
	}
	return d.Result[0].Value[1].(string)
}

func TestClientReadsWhatWasAccepted(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	for i := range 30 {
		at := now.Add(time.Duration(i-30) * 10 * time.Second)
		a.accept(a.build(host, uint64(1+2*i), at, point{"requests_total", float64(10 * i), at}, point{"up", 1, at}))
	}
	n := start(t, a, nil)
	<-n.Complete()

	c, err := api.NewClient(api.Config{Address: n.url})
	if err != nil {
		t.Fatal(err)
	}
	p := promv1.NewAPI(c)
	ctx := context.Background()
	v, warnings, _, err := p.Query(ctx, `sum(rate(requests_total[2m]))`, now)
	if err != nil || len(warnings) != 0 {
		t.Fatalf("%v, warnings %v", err, warnings)
	}
	if got := v.(model.Vector); len(got) != 1 || got[0].Value != 1 {
		t.Errorf("rate is %v, want 1", got)
	}
	v, _, _, err = p.QueryRange(ctx, `count_over_time(up{instance="host1:1",job="node"}[1m])`, promv1.Range{Start: now.Add(-4 * time.Minute), End: now, Step: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if m := v.(model.Matrix); len(m) != 1 || len(m[0].Values) != 5 || m[0].Values[2].Value != 6 {
		t.Errorf("range gave %v", m)
	}
	series, _, _, err := p.Series(ctx, []string{`{job="node"}`}, now.Add(-time.Hour), now)
	if err != nil || len(series) != 2 {
		t.Errorf("series %v, %v", series, err)
	}
	names, _, _, err := p.LabelNames(ctx, nil, now.Add(-time.Hour), now)
	if err != nil || names.String() != "__name__, agent, instance, job" {
		t.Errorf("labels %v, %v", names, err)
	}
	values, _, _, err := p.LabelValues(ctx, "__name__", nil, now.Add(-time.Hour), now)
	if err != nil || len(values) != 2 {
		t.Errorf("values %v, %v", values, err)
	}
	md, err := p.Metadata(ctx, "requests_total", "")
	if err != nil || len(md) != 1 || md["requests_total"][0].Type != promv1.MetricTypeCounter {
		t.Errorf("metadata %v, %v", md, err)
	}
	if _, err := p.QueryExemplars(ctx, "up", now.Add(-time.Hour), now); err != nil {
		t.Error(err)
	}
	if _, err := p.Buildinfo(ctx); err != nil {
		t.Error(err)
	}
	if _, _, _, err := p.Query(ctx, `rate(`, now); err == nil || err.(*promv1.Error).Type != promv1.ErrBadData {
		t.Errorf("a bad query gave %v", err)
	}
	e := n.get("/api/v1/query", "query", "up")
	if e.Lightmetrics.Partial || e.Lightmetrics.CompleteThrough == "" {
		t.Errorf("completeness %+v", e.Lightmetrics)
	}
}
