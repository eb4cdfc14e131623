package scrape

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/input/inputtest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

type sample struct {
	v     float64
	at    int64
	t     series.Type
	unit  string
	start int64
}

func (s sample) stale() bool { return math.Float64bits(s.v) == value.StaleNaN }

// render is name{label="value",…} without job and instance.
func render(s *input.Series) string {
	name, parts := "", []string{}
	for _, l := range s.Labels {
		switch l.Name {
		case "__name__":
			name = l.Value
		case "job", "instance":
		default:
			parts = append(parts, fmt.Sprintf("%s=%q", l.Name, l.Value))
		}
	}
	sort.Strings(parts)
	if len(parts) == 0 {
		return name
	}
	return name + "{" + strings.Join(parts, ",") + "}"
}

type fixture struct {
	t    *testing.T
	s    *Scraper
	sink inputtest.Sink
	last map[string]sample
	now  time.Time
}

func newFixture(t *testing.T, target Target) *fixture {
	t.Helper()
	f := &fixture{t: t, now: time.Unix(1_700_000_000, 123_456_789)}
	f.sink = func(sc input.Batch) bool {
		f.last = map[string]sample{}
		for _, x := range sc.Samples {
			f.last[render(x.Series)] = sample{x.Value, x.Time, x.Series.Type, x.Series.Unit, x.Series.Start}
		}
		return true
	}
	s, err := New(target.WithDefaults(10*time.Second), input.Env{Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return f.now }})
	if err != nil {
		t.Fatal(err)
	}
	f.s = s
	return f
}

func (f *fixture) scrape() map[string]sample {
	f.now = f.now.Add(10 * time.Second)
	f.s.Scrape(f.t.Context(), f.sink)
	return f.last
}

func serve(t *testing.T, h http.Handler) config.URL {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return config.URL(srv.URL + "/metrics")
}

// text serves a body that can be changed.
func text(t *testing.T, body *string, contentType string) config.URL {
	return serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, *body)
	}))
}

// TestClientGolang scrapes the real handler, gzip and OpenMetrics included.
func TestClientGolang(t *testing.T) {
	for _, om := range []bool{false, true} {
		t.Run(fmt.Sprintf("openmetrics=%v", om), func(t *testing.T) {
			reg := prometheus.NewRegistry()
			c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "req_total", Help: "h"}, []string{"code"})
			g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "temp_celsius", Help: "h"})
			h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "lat_seconds", Help: "h", Buckets: []float64{1, 2}})
			s := prometheus.NewSummary(prometheus.SummaryOpts{Name: "size_bytes", Help: "h", Objectives: map[float64]float64{0.5: 0.05}})
			reg.MustRegister(c, g, h, s)
			c.WithLabelValues("200").Add(7)
			g.Set(-3.5)
			h.Observe(1.5)
			s.Observe(10)
			f := newFixture(t, Target{Job: "app", URL: serve(t, promhttp.HandlerFor(reg,
				promhttp.HandlerOpts{EnableOpenMetrics: om, EnableOpenMetricsTextCreatedSamples: om})), Labels: map[string]string{"zone": "z1"}})
			got := f.scrape()
			for series, want := range map[string]sample{
				`req_total{code="200",zone="z1"}`:         {v: 7, t: series.Counter},
				`temp_celsius{zone="z1"}`:                 {v: -3.5, t: series.Gauge},
				`lat_seconds_bucket{le="1.0",zone="z1"}`:  {v: 0, t: series.Counter},
				`lat_seconds_bucket{le="2.0",zone="z1"}`:  {v: 1, t: series.Counter},
				`lat_seconds_bucket{le="+Inf",zone="z1"}`: {v: 1, t: series.Counter},
				`lat_seconds_count{zone="z1"}`:            {v: 1, t: series.Counter},
				`lat_seconds_sum{zone="z1"}`:              {v: 1.5, t: series.Counter},
				`size_bytes{quantile="0.5",zone="z1"}`:    {v: 10, t: series.Gauge},
				`size_bytes_count{zone="z1"}`:             {v: 1, t: series.Counter},
				`up{zone="z1"}`:                           {v: 1, t: series.Gauge},
				`scrape_samples_scraped{zone="z1"}`:       {v: 10, t: series.Gauge},
			} {
				g, ok := got[series]
				if !ok {
					t.Errorf("no %s in %v", series, got)
					continue
				}
				if g.v != want.v || g.t != want.t || g.at != f.now.Truncate(time.Millisecond).UnixNano() {
					t.Errorf("%s is %+v, want %+v", series, g, want)
				}
			}
			if _, ok := got[`scrape_duration_seconds{zone="z1"}`]; !ok {
				t.Error("no scrape_duration_seconds")
			}
			if start := got[`req_total{code="200",zone="z1"}`].start; om && start == 0 {
				t.Error("no start time of an OpenMetrics counter")
			}
			if len(got) != 13 {
				t.Errorf("%d series, want 13: %v", len(got), got)
			}
		})
	}
}

func TestTypesOfOpenMetrics(t *testing.T) {
	body := "# TYPE build info\nbuild_info{v=\"1\"} 1\n# TYPE state stateset\nstate{state=\"on\"} 1\n" +
		"# TYPE size_bytes gauge\n# UNIT size_bytes bytes\nsize_bytes 5\n# TYPE x unknown\nx 1\n# TYPE work counter\nwork_total 3\n# EOF\n"
	f := newFixture(t, Target{Job: "j", URL: text(t, &body, "application/openmetrics-text; version=1.0.0; charset=utf-8")})
	got := f.scrape()
	for series, want := range map[string]sample{
		`build_info{v="1"}`: {t: series.Info}, `state{state="on"}`: {t: series.Info}, `size_bytes`: {t: series.Gauge, unit: "bytes"},
		`x`: {t: series.Unknown}, `work_total`: {t: series.Counter},
	} {
		if g := got[series]; g.t != want.t || g.unit != want.unit {
			t.Errorf("%s is %+v, want %+v", series, g, want)
		}
	}
	if got["up"].v != 1 {
		t.Errorf("not parsed: %v, %s", got, f.s.Status().LastError)
	}
}

// TestStaleness: a series that goes, a target that goes down and comes back.
func TestStaleness(t *testing.T) {
	body, down := "a 1\nb{x=\"1\"} 2\nc 3 1600000000000\n", false
	f := newFixture(t, Target{Job: "j", URL: serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if down {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, body)
	}))})
	got := f.scrape()
	if got["a"].v != 1 || got["c"].at != 1_600_000_000_000_000_000 {
		t.Fatalf("first scrape: %v", got)
	}
	body = "a 5\nc 4 1600000010000\n"
	got = f.scrape()
	if b := got[`b{x="1"}`]; !b.stale() || b.at != f.now.Truncate(time.Millisecond).UnixNano() {
		t.Fatalf("b is %+v, want a stale marker with the bits %x", b, value.StaleNaN)
	}
	if _, ok := f.scrape()[`b{x="1"}`]; ok {
		t.Fatal("b is marked stale twice")
	}
	down = true
	got = f.scrape()
	if !got["a"].stale() || got["up"].v != 0 || got["scrape_samples_scraped"].v != 0 {
		t.Fatalf("down: %v", got)
	}
	if _, ok := got["c"]; ok {
		t.Fatal("a series with its own timestamps got a stale marker")
	}
	if got = f.scrape(); len(got) != 3 {
		t.Fatalf("still down: %v", got)
	}
	if st := f.s.Status(); st.Up || !strings.Contains(st.LastError, "500") {
		t.Errorf("status %+v", st)
	}
	down = false
	if got = f.scrape(); got["a"].v != 5 || got["up"].v != 1 {
		t.Fatalf("up again: %v", got)
	}
}

func TestVanishedTarget(t *testing.T) {
	body := "a 1\n"
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, body)
	}))
	f := newFixture(t, Target{Job: "j", URL: config.URL(srv.URL)})
	f.scrape()
	srv.Close()
	if got := f.scrape(); !got["a"].stale() || got["up"].v != 0 {
		t.Fatalf("%v", got)
	}
}

// A failed scrape counts as a whole: nothing of it but markers.
func TestWholeScrapeFails(t *testing.T) {
	good := "a 1\n"
	for name, c := range map[string]struct {
		body, contentType, want string
		target                  Target
	}{
		"sample limit": {"a 1\nb 2\nc 3\n", "text/plain", "sample_limit", Target{SampleLimit: 2}},
		"body limit":   {"a 1\n" + strings.Repeat("# padding\n", 1000), "text/plain", "body_limit", Target{BodyLimit: config.Bytes(5000)}},
		"garbage":      {"a 1\nb {{{\n", "text/plain", "parse", Target{}},
		"far time":     {"a 1\nb 2 9223372036854775807\n", "text/plain", "64 bits", Target{}},
		"no EOF":       {"a 1\n", "application/openmetrics-text; version=1.0.0", "parse", Target{}},
	} {
		t.Run(name, func(t *testing.T) {
			body, ct := good, "text/plain"
			c.target.Job = "j"
			c.target.URL = serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", ct)
				_, _ = io.WriteString(w, body)
			}))
			f := newFixture(t, c.target)
			if got := f.scrape(); got["a"].v != 1 {
				t.Fatalf("good body: %v %s", got, f.s.Status().LastError)
			}
			body, ct = c.body, c.contentType
			got := f.scrape()
			if len(got) != 4 || !got["a"].stale() || got["up"].v != 0 {
				t.Errorf("got %v", got)
			}
			if e := f.s.Status().LastError; !strings.Contains(e, c.want) {
				t.Errorf("error %q, want %q in it", e, c.want)
			}
		})
	}
}

func TestClashingLabels(t *testing.T) {
	body := `a{job="theirs",exported_job="x"} 1` + "\n"
	url := text(t, &body, "text/plain")
	find := func(honor bool) map[string]string {
		f := newFixture(t, Target{Job: "ours", URL: url, HonorLabels: honor})
		out := map[string]string{}
		f.sink = func(sc input.Batch) bool {
			for _, l := range sc.Samples[0].Series.Labels {
				out[l.Name] = l.Value
			}
			return true
		}
		f.scrape()
		return out
	}
	if got := find(false); got["job"] != "ours" || got["exported_exported_job"] != "theirs" || got["exported_job"] != "x" {
		t.Errorf("clash: %v", got)
	}
	if got := find(true); got["job"] != "theirs" || got["exported_job"] != "x" || got["instance"] == "" {
		t.Errorf("honored: %v", got)
	}
	// As in Prometheus: an empty label of a target that is honored keeps ours away.
	body = `a{instance="",job="theirs"} 1` + "\n"
	if got := find(true); got["job"] != "theirs" || got["instance"] != "" {
		t.Errorf("honored, empty: %v", got)
	}
	if got := find(false); got["instance"] == "" || got["exported_instance"] != "" {
		t.Errorf("empty, not honored: %v", got)
	}
}

func TestAuthentication(t *testing.T) {
	seen := ""
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "text/plain")
	}))
	newFixture(t, Target{Job: "j", URL: url, BearerToken: "secret"}).scrape()
	if seen != "Bearer secret" {
		t.Errorf("bearer: %q", seen)
	}
	newFixture(t, Target{Job: "j", URL: url, Username: "u", Password: "p"}).scrape()
	if seen != "Basic dTpw" {
		t.Errorf("basic: %q", seen)
	}
}

// A series is its labels: a new type neither ends it nor doubles it.
func TestTypeChange(t *testing.T) {
	body := "# TYPE a gauge\na 1\n"
	f := newFixture(t, Target{Job: "j", URL: text(t, &body, "text/plain")})
	f.scrape()
	body = "# TYPE a counter\na 2\n"
	var got []input.Sample
	f.sink = func(sc input.Batch) bool {
		for _, x := range sc.Samples {
			if render(x.Series) == "a" {
				got = append(got, x)
			}
		}
		return true
	}
	f.scrape()
	if len(got) != 1 || got[0].Value != 2 || got[0].Series.Type != series.Counter {
		t.Errorf("got %+v", got)
	}
}

func BenchmarkScrape(b *testing.B) {
	var body strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&body, "metric_%d{label=\"some value\",path=\"/a/b/c\"} %d\n", i, i)
	}
	target := Target{Job: "j", URL: "http://h/"}.WithDefaults(time.Second)
	p := newParser(target)
	raw := []byte(body.String())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.parse(raw, "text/plain", 1); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(1000*b.N)/b.Elapsed().Seconds(), "samples/s")
}

// TestRemovedTargetEndsItsSeries: a target that left the settings gets stale markers for all
// its series; at a stop of the agent they go on.
func TestRemovedTargetEndsItsSeries(t *testing.T) {
	for _, removed := range []bool{true, false} {
		body := "a 1\n"
		f := newFixture(t, Target{Job: "j", URL: text(t, &body, "text/plain")})
		f.scrape()
		f.last = nil
		ctx, end := context.WithCancelCause(t.Context())
		cause := input.ErrRemoved
		if !removed {
			cause = context.Canceled
		}
		end(cause)
		if err := f.s.Run(ctx, f.sink); err != nil {
			t.Fatal(err)
		}
		if removed != (len(f.last) == 4 && f.last["a"].stale() && f.last["up"].stale()) || !removed && f.last != nil {
			t.Errorf("removed %t: got %v", removed, f.last)
		}
	}
}
