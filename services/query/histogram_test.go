package query_test

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// TestGRPCCarriesNativeHistograms: what a caller gets by gRPC has the counts of the samples.
func TestGRPCCarriesNativeHistograms(t *testing.T) {
	const seed = 12
	t.Logf("seed %d", seed)
	end := time.Now().Truncate(time.Minute)
	c := newCorpus(t, rand.New(rand.NewPCG(seed, 8)), end.Add(-20*time.Minute), end)
	a := newAuthority(t)
	for _, b := range c.builts {
		a.accept(b)
	}
	n := start(t, a, nil)
	<-n.Complete()
	ctx, ms := context.Background(), end.UnixMilli()
	cl := client(t, n)
	check := func(what string, p *queryv1.Point) {
		t.Helper()
		h, total := p.GetHistogram(), 0.0
		if h == nil || h.GetCount() == 0 || p.GetValue() != 0 {
			t.Errorf("%s: %v", what, p)
			return
		}
		for i, b := range h.GetBuckets() {
			total += b.GetCount()
			if b.GetLower() >= b.GetUpper() || b.GetLowerInclusive() || !b.GetUpperInclusive() || i > 0 && b.GetLower() < h.GetBuckets()[i-1].GetUpper() {
				t.Errorf("%s: bucket %v", what, b)
			}
		}
		if total != h.GetCount() || 3*h.GetSum() != 2*h.GetCount() { // as the corpus has it
			t.Errorf("%s: %v", what, h)
		}
	}
	got, err := cl.Query(ctx, &queryv1.QueryRequest{Expression: "h", TimeUnixMs: &ms})
	if err != nil || len(got.GetSeries()) != 3 {
		t.Fatalf("%v, %v", got, err)
	}
	for _, s := range got.GetSeries() {
		check("at", s.GetPoints()[0])
	}
	// Floats and histograms in one series, in time order.
	mixed := `sum by (job) (h) and on () (vector(time() % 120) < 60) or sum by (job) (count_over_time(h[1m]))`
	stream, err := cl.QueryRange(ctx, &queryv1.QueryRangeRequest{Expression: mixed, StartUnixMs: ms - 600_000, EndUnixMs: ms, StepMs: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	floats, hists := 0, 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for _, p := range m.GetSeries().GetPoints() {
			if p.GetTimeUnixMs() <= last {
				t.Errorf("%d after %d", p.GetTimeUnixMs(), last)
			}
			last = p.GetTimeUnixMs()
			if p.GetHistogram() == nil {
				floats++
				continue
			}
			hists++
			check("over a range", p)
		}
	}
	if floats == 0 || hists == 0 {
		t.Errorf("%d floats, %d histograms", floats, hists)
	}
	resp, err := http.Get(n.url + "/v1/query?expression=h")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(body), `"upper_inclusive":true`) {
		t.Errorf("gateway: %v: %s", err, body)
	}
}
