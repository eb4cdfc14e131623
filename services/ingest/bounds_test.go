package ingest_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// encodeSeries makes a frame of the series [from, to), a record each.
func encodeSeries(t testing.TB, b identity.Boot, seq uint64, from, to int, at time.Time) []byte {
	t.Helper()
	fb := frame.NewBuilder()
	for i := from; i < to; i++ {
		id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "m"}, {Name: "i", Value: fmt.Sprint(i)}}, series.Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := fb.Append(id, at.UnixNano(), float64(i)); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := fb.Build(b, seq)
	if err != nil {
		t.Fatal(err)
	}
	f, err := frame.Encode(nil, batch)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// submit gives the outcome of the unary call: accepted, duplicate, or the reason of its error.
func (c *collector) submit(t testing.TB, f []byte) string {
	t.Helper()
	r, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: f})
	switch {
	case err != nil:
		return rpc.Reason(err)
	case r.GetDuplicate():
		return "duplicate"
	}
	return "accepted"
}

// TestSeriesLimit: an agent gets no more series than it may have; what it has goes on,
// and so do all others.
func TestSeriesLimit(t *testing.T) {
	store := newStore()
	c := start(t, store, func(cfg *ingest.Config) { cfg.Limits.AgentSeries = 100 })
	now := time.Now()
	first := encodeSeries(t, boot, 1, 0, 80, now)
	want := func(what string, f []byte, outcome string) {
		t.Helper()
		if got := c.submit(t, f); got != outcome {
			t.Errorf("%s: %s, want %s", what, got, outcome)
		}
	}
	want("80 series", first, "accepted")
	before := contents(t, store)
	over := encodeSeries(t, boot, 81, 40, 160, now)
	want("80 more", over, ingest.ReasonSeriesLimit)
	want("the same again", over, ingest.ReasonSeriesLimit)
	if after := contents(t, store); !maps.Equal(before, after) {
		t.Errorf("a refused batch wrote: %v, before %v", after, before)
	}
	if n := c.batches(t, "rejected", ingest.ReasonSeriesLimit); n != 2 {
		t.Errorf("%v refusals counted, want 2", n)
	}
	if n := c.gauge(t, "lightmetrics_ingest_agents_at_series_limit"); n != 1 {
		t.Errorf("%v agents at their limit, want 1", n)
	}
	want("the series that it has", encodeSeries(t, boot, 81, 0, 80, now), "accepted")
	want("another agent", encodeSeries(t, identity.Boot{Agent: "web-2", Boot: "b"}, 1, 100, 180, now), "accepted")

	// Over a stream it is REJECTED, over HTTP 400: never an answer to come back.
	_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: over})
	if status.Code(err) != codes.FailedPrecondition || rpc.RetryAfter(err) != 0 {
		t.Errorf("unary: %v", err)
	}
	other := identity.Boot{Agent: boot.Agent, Boot: "boot-2"}
	s, _ := c.mustOpen(t, other, 0)
	if r := s.ask(encodeSeries(t, other, 161, 80, 200, now)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_REJECTED || r.GetReason() != ingest.ReasonSeriesLimit || r.GetDetail() == "" {
		t.Errorf("stream: %v", r)
	}
	s.done()
	if a := c.post(t, over, nil); a.code != 400 || a.body["error"] != strings.ToLower(ingest.ReasonSeriesLimit) {
		t.Errorf("HTTP: %+v", a)
	}
}

// TestBoundsOfABatch: what one batch may be, whatever its agent sent before.
func TestBoundsOfABatch(t *testing.T) {
	now := time.Now()
	label := func(name string, bytes int) series.Label {
		return series.Label{Name: name, Value: strings.Repeat("x", bytes-len(name))}
	}
	long := func(bytes int) []byte {
		fb := frame.NewBuilder()
		id, err := fb.AddSeries([]series.Label{{Name: "__name__", Value: "m"}, label("a", bytes/2), label("b", bytes-bytes/2-9)}, series.Gauge, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := fb.Append(id, now.UnixNano(), 1); err != nil {
			t.Fatal(err)
		}
		b, err := fb.Build(boot, 1000)
		if err != nil {
			t.Fatal(err)
		}
		f, err := frame.Encode(nil, b)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	c := start(t, newStore(), func(cfg *ingest.Config) {
		cfg.Limits.BatchSeries, cfg.Limits.SeriesBytes, cfg.Limits.AgentSeries = 10, 500, 0
	})
	for i, tc := range []struct {
		what  string
		frame []byte
		want  string
	}{
		{"ten series", encodeSeries(t, boot, 1, 0, 10, now), "accepted"},
		{"eleven series", encodeSeries(t, boot, 11, 0, 11, now), ingest.ReasonBatchSeriesLimit},
		{"labels of 501 bytes", long(501), ingest.ReasonLabelBytesLimit},
		{"labels of 500 bytes", long(500), "accepted"},
	} {
		if got := c.submit(t, tc.frame); got != tc.want {
			t.Errorf("%d, %s: %s, want %s", i, tc.what, got, tc.want)
		}
	}
}

// TestAcceptedBatchesStayDuplicates: a bound that came, or fell, after a batch was
// accepted is no reason to tell its sender that it is not. Where nobody can know whether
// it is, the sender comes back.
func TestAcceptedBatchesStayDuplicates(t *testing.T) {
	store := newStore()
	wide := start(t, store, func(cfg *ingest.Config) { cfg.Limits.Future, cfg.Limits.AgentSeries = 0, 0 })
	ahead := time.Now().Add(1000 * time.Hour)
	accepted := encodeSeries(t, boot, 1, 0, 100, ahead)
	if got := wide.submit(t, accepted); got != "accepted" {
		t.Fatal(got)
	}
	for name, change := range map[string]func(*ingest.Limits){
		"agent_series": func(l *ingest.Limits) { l.AgentSeries, l.Future = 10, 0 },
		"batch_series": func(l *ingest.Limits) { l.BatchSeries, l.Future = 10, 0 },
		"series_bytes": func(l *ingest.Limits) { l.SeriesBytes, l.Future = 8, 0 },
		"future":       func(l *ingest.Limits) { l.Future = time.Hour },
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, store, func(cfg *ingest.Config) { change(&cfg.Limits) })
			fresh := encodeSeries(t, boot, 5000, 200, 300, ahead)
			store.down.Store(true)
			if got := c.submit(t, fresh); got != "STORE_UNAVAILABLE" {
				t.Errorf("a batch out of bounds over a store that does not answer: %s", got)
			}
			store.down.Store(false)
			if got := c.submit(t, accepted); got != "duplicate" {
				t.Errorf("a batch that is accepted: %s", got)
			}
			if got := c.submit(t, encodeSeries(t, boot, 1, 100, 200, ahead)); got != ingest.ReasonIdentityConflict {
				t.Errorf("other bytes with its identity: %s", got)
			}
			if got := c.submit(t, fresh); got == "accepted" || got == "duplicate" || got == "STORE_UNAVAILABLE" {
				t.Errorf("a batch out of bounds: %s", got)
			}
		})
	}
}

// TestFuture: samples too far ahead are refused, by the later of the collector's clock
// and the store's.
func TestFuture(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name      string
		collector time.Duration // its clock is off by
		future    time.Duration
		sample    time.Duration // is of that much after now
		want      string
	}{
		{"in bounds", 0, time.Hour, 59 * time.Minute, "accepted"},
		{"three years", 0, time.Hour, 3 * 365 * 24 * time.Hour, ingest.ReasonTimeInFuture},
		{"too far", 0, time.Hour, 62 * time.Minute, ingest.ReasonTimeInFuture},
		{"no bound", 0, 0, 3 * 365 * 24 * time.Hour, "accepted"},
		{"the past", 0, time.Hour, -3 * 365 * 24 * time.Hour, "accepted"},
		{"a collector that is behind", -48 * time.Hour, time.Hour, 0, "accepted"},
		{"a collector that is behind, and the future", -48 * time.Hour, time.Hour, 3 * time.Hour, ingest.ReasonTimeInFuture},
		{"a collector that is ahead", 48 * time.Hour, time.Hour, 47 * time.Hour, "accepted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := launchAt(t, &faulty{Store: mem.New(func() time.Time { return now })}, rpc.ClientConfig{}, telemetry.Discard(),
				func() time.Time { return now.Add(tc.collector) }, func(cfg *ingest.Config) { cfg.Limits.Future = tc.future })
			eventually(t, "ready", func() bool { return c.NotReady() == nil })
			before := contents(t, c.store)
			f := encodeSeries(t, boot, 1, 0, 3, now.Add(tc.sample))
			if got := c.submit(t, f); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
			if after := contents(t, c.store); tc.want != "accepted" && !maps.Equal(before, after) {
				t.Errorf("a refused batch wrote: %v", after)
			}
			if got := c.gauge(t, "lightmetrics_ingest_clock_behind_seconds"); got != -tc.collector.Seconds() {
				t.Errorf("the clock is behind by %v, want %v", got, -tc.collector.Seconds())
			}
		})
	}
}

// gauge reads a gauge without labels.
func (c *collector) gauge(t testing.TB, name string) float64 {
	t.Helper()
	mfs, err := c.tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, mf := range mfs {
		if mf.GetName() == name {
			return mf.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
