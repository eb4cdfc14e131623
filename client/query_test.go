package client_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/client"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// TestRoundTrip: what a Writer sent is what a Querier reads, numbers and histograms.
func TestRoundTrip(t *testing.T) {
	w := open(t, t.TempDir(), client.Options{Agent: "round-trip", Collectors: []string{collector}})
	at := time.Now().Add(-time.Minute).Truncate(time.Second)
	n := &client.Series{Name: "trip", Type: client.Gauge, Labels: client.Labels{"kind": "number"}}
	h := &client.Series{Name: "trip_seconds", Type: client.HistogramCumulative, Unit: "seconds", Start: at.Add(-time.Hour)}
	hist := client.Histogram{Schema: 0, Count: 3, Sum: 4.5, ZeroThreshold: 1e-100, PositiveSpans: []int32{0, 2}, PositiveBuckets: []float64{2, 1}}
	if err := errors.Join(w.Append(bound(t), n.At(at, 7), h.HistogramAt(at, hist), n.At(at.Add(10*time.Second), math.Inf(1))), w.Flush(bound(t))); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(bound(t), `trip{agent="round-trip"}`); err != nil {
		t.Fatal(err)
	}
	q, err := client.DialQuery(queryNode, client.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	a, err := q.Instant(bound(t), "trip_seconds", at)
	if err != nil || len(a.Series) != 1 || a.Type != "vector" {
		t.Fatalf("%+v, %v", a, err)
	}
	if p := a.Series[0].Points[0]; p.Histogram == nil || p.Histogram.Count != 3 || p.Histogram.Sum != 4.5 || len(p.Histogram.Buckets) != 2 || p.Histogram.Buckets[1].Count != 1 {
		t.Errorf("histogram %+v", p.Histogram)
	}
	a, err = q.Range(bound(t), "trip", at, at.Add(10*time.Second), 5*time.Second)
	if err != nil || len(a.Series) != 1 || len(a.Series[0].Points) != 3 || !math.IsInf(a.Series[0].Points[2].Value, 1) || a.Series[0].Labels["kind"] != "number" {
		t.Errorf("%+v, %v", a, err)
	}
	if a.Completeness.Partial || a.Completeness.CompleteThrough.Before(at) {
		t.Errorf("completeness %+v", a.Completeness)
	}
	for expression, want := range map[string]string{`"text"`: "string text 0", `1+1`: "scalar  2"} {
		a, err := q.Instant(bound(t), expression, at)
		if err != nil {
			t.Fatal(err)
		}
		v := 0.0
		if len(a.Series) > 0 {
			v = a.Series[0].Points[0].Value
		}
		if got := fmt.Sprint(a.Type, " ", a.Text, " ", v); got != want {
			t.Errorf("%s: %s, want %s", expression, got, want)
		}
	}
	agents, c, err := q.Agents(bound(t), "round-trip")
	if err != nil || c.Partial || len(agents) != 1 || agents[0].Records != 3 || agents[0].AcceptedThrough != 3 || len(agents[0].Gaps) != 0 || agents[0].LastAccepted.IsZero() {
		t.Errorf("agents %+v, %+v, %v", agents, c, err)
	}
	if list, err := q.Conflicts(bound(t), "round-trip"); err != nil || len(list) != 0 {
		t.Errorf("conflicts %v, %v", list, err)
	}
}

// scriptedQuery answers with what a test says.
type scriptedQuery struct {
	queryv1.UnimplementedQueryServiceServer
	completeness *queryv1.Completeness
	cut          bool
}

func (s *scriptedQuery) Query(context.Context, *queryv1.QueryRequest) (*queryv1.QueryResponse, error) {
	return &queryv1.QueryResponse{ResultType: "vector", Completeness: s.completeness}, nil
}

func (s *scriptedQuery) QueryRange(_ *queryv1.QueryRangeRequest, st grpc.ServerStreamingServer[queryv1.QueryRangeResponse]) error {
	if err := st.Send(&queryv1.QueryRangeResponse{Series: &queryv1.Series{}}); err != nil || s.cut {
		return err
	}
	return st.Send(&queryv1.QueryRangeResponse{Completeness: s.completeness})
}

func (s *scriptedQuery) ListAgents(_ context.Context, r *queryv1.ListAgentsRequest) (*queryv1.ListAgentsResponse, error) {
	resp := &queryv1.ListAgentsResponse{Agents: []*queryv1.Agent{{AgentId: "a" + r.GetPageToken()}}, Completeness: s.completeness}
	if r.GetPageToken() == "" {
		resp.NextPageToken, resp.Completeness = "2", &queryv1.Completeness{}
	}
	return resp, nil
}

// TestCompletenessIsNeverLost: reasons, notes and gaps arrive as they are; an answer that
// does not say how complete it is, or is cut off before it does, is never taken for a whole one.
func TestCompletenessIsNeverLost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scriptedQuery{completeness: &queryv1.Completeness{
		Partial: true, CompleteThroughUnixNs: 5e18, Reasons: []string{"BATCH_UNREADABLE: a: b"},
		Missing: []*queryv1.Missing{{Code: "BATCH_UNREADABLE", Batches: 3, Shards: []uint32{7}, Hours: []*queryv1.HourRange{{StartUnixMs: 3600e3, EndUnixMs: 7200e3}}}},
		Notes:   []string{"DOWNSAMPLED: x"},
		Agents:  []*queryv1.Agent{{AgentId: "a", BootId: "b", Gaps: []*queryv1.SeqRange{{Start: 3, End: 9}}, ConcurrentBootIds: []string{"c"}}},
	}}
	server := grpc.NewServer()
	queryv1.RegisterQueryServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	q, err := client.DialQuery(l.Addr().String(), client.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	a, err := q.Instant(bound(t), "x", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := a.Completeness
	if !c.Partial || c.CompleteThrough.UnixNano() != 5e18 || fmt.Sprint(c.Reasons) != "[BATCH_UNREADABLE: a: b]" || c.Reasons[0].Code != "BATCH_UNREADABLE" ||
		fmt.Sprint(c.Missing) != "[{BATCH_UNREADABLE 3 false [{1970-01-01 01:00:00 +0000 UTC 1970-01-01 02:00:00 +0000 UTC}] 0 [7] 0}]" ||
		c.Notes[0].Code != "DOWNSAMPLED" || len(c.Agents) != 1 || fmt.Sprint(c.Agents[0].Gaps) != "[3-9]" || c.Agents[0].Concurrent[0] != "c" {
		t.Errorf("got %+v", c)
	}
	var partial *client.PartialError
	if err := c.Err(); !errors.As(err, &partial) || partial.Reasons[0].Code != "BATCH_UNREADABLE" {
		t.Errorf("Err: %v", err)
	}
	if list, c, err := q.Agents(bound(t), ""); err != nil || len(list) != 2 || !c.Partial {
		t.Errorf("a list whose second page is partial: %v, %+v, %v", list, c, err)
	}
	s.cut = true
	var e *client.Error
	if _, err := q.Range(bound(t), "x", time.Now(), time.Now(), time.Second); !errors.As(err, &e) || !e.Temporary {
		t.Errorf("an answer that is cut off: %v", err)
	}
	s.completeness = nil
	if a, err := q.Instant(bound(t), "x", time.Now()); err != nil || a.Completeness.Err() == nil {
		t.Errorf("an answer without completeness: %+v, %v", a, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.Instant(ended, "x", time.Now()); !errors.Is(err, context.Canceled) || status.Code(err) != codes.Canceled {
		t.Errorf("a call whose context has ended: %v", err)
	}
	if _, err := q.Range(ended, "x", time.Now(), time.Now(), time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("a range whose context has ended: %v", err)
	}
	server.Stop()
	if _, err := q.Instant(bound(t), "x", time.Now()); !errors.As(err, &e) || !e.Temporary || e.Reason != "" {
		t.Errorf("a service that is away: %v", err)
	}
}
