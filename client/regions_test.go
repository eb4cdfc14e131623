package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/client"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// regional answers for two regions, of which one is away, and notes what it was asked.
type regional struct {
	queryv1.UnimplementedQueryServiceServer
	asked []string
}

var bothRegions = []*queryv1.RegionCompleteness{
	{Region: "eu", Completeness: &queryv1.Completeness{CompleteThroughUnixNs: 5e18}},
	{Region: "us", Reason: "DEADLINE", Detail: "no answer within 10s"},
}

func (s *regional) Query(_ context.Context, r *queryv1.QueryRequest) (*queryv1.QueryResponse, error) {
	s.asked = append(s.asked, fmt.Sprint(r.GetRegions(), r.GetRequireComplete(), r.GetStrong(), r.GetMinTokens()))
	return &queryv1.QueryResponse{ResultType: "vector", Completeness: &queryv1.Completeness{Partial: true, Reasons: []string{"REGION_MISSING: us"}, Regions: bothRegions}}, nil
}

func (s *regional) QueryRange(r *queryv1.QueryRangeRequest, st grpc.ServerStreamingServer[queryv1.QueryRangeResponse]) error {
	s.asked = append(s.asked, fmt.Sprint(r.GetRegions(), r.GetRequireComplete(), r.GetStrong(), r.GetMinTokens()))
	return st.Send(&queryv1.QueryRangeResponse{Completeness: &queryv1.Completeness{Regions: bothRegions[:1]}})
}

func (s *regional) ListAgents(_ context.Context, r *queryv1.ListAgentsRequest) (*queryv1.ListAgentsResponse, error) {
	s.asked = append(s.asked, fmt.Sprint(r.GetRegions()))
	return &queryv1.ListAgentsResponse{Agents: []*queryv1.Agent{{AgentId: "a", Regions: []string{"eu", "us"}}}, Completeness: &queryv1.Completeness{}}, nil
}

func (s *regional) ListConflicts(_ context.Context, r *queryv1.ListConflictsRequest) (*queryv1.ListConflictsResponse, error) {
	s.asked = append(s.asked, fmt.Sprint(r.GetRegions()))
	first, last := uint64(0), uint64(7)
	resp := &queryv1.ListConflictsResponse{Conflicts: []*queryv1.IdentityConflict{{AgentId: "a", Region: "eu", SeqStart: 5, SeqEnd: 9}}, Regions: bothRegions}
	if r.GetPageToken() == "" {
		resp.Conflicts[0].AcceptedSeqStart, resp.Conflicts[0].AcceptedSeqEnd = &first, &last
	}
	if r.GetPageToken() == "" {
		resp.NextPageToken = "2"
	}
	return resp, nil
}

// TestRegionsOfAnAnswer: what is asked of regions goes out as it is, each region's completeness comes back, and one that is not in
// a list is an error beside it.
func TestRegionsOfAnAnswer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, server := &regional{}, grpc.NewServer()
	queryv1.RegisterQueryServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	q, err := client.DialQuery(l.Addr().String(), client.Credentials{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	w := client.Wanted{Written: client.Written{Everything: true, Tokens: []client.Token{"x"}}, Regions: []string{"eu", client.LocalRegion}, Complete: true}
	a, err := q.InstantOf(bound(t), w, "up", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	r := a.Completeness.Regions
	if len(r) != 2 || r[0].Region != "eu" || r[0].Completeness == nil || r[0].Completeness.CompleteThrough.UnixNano() != 5e18 || r[0].Completeness.Partial ||
		r[1].Region != "us" || r[1].Completeness != nil || r[1].Reason != "DEADLINE" || r[1].Detail != "no answer within 10s" {
		t.Errorf("%+v", r)
	}
	if a, err = q.RangeOf(bound(t), w, "up", time.Now(), time.Now(), time.Second); err != nil || len(a.Completeness.Regions) != 1 {
		t.Errorf("%+v %v", a, err)
	}
	agents, _, err := q.AgentsOf(bound(t), []string{client.AllRegions}, "")
	if err != nil || fmt.Sprint(agents[0].Regions) != "[eu us]" {
		t.Errorf("%+v %v", agents, err)
	}
	var partial *client.PartialError
	list, err := q.ConflictsOf(bound(t), []string{"eu", "us"}, "")
	if !errors.As(err, &partial) || len(partial.Reasons) != 1 || partial.Reasons[0].Code != "REGION_MISSING" || len(list) != 2 || list[0].Region != "eu" {
		t.Errorf("%+v %v", list, err)
	}
	// Which batch is in the way: the same, unless the service names another one.
	if a, b := list[0], list[1]; a.Accepted.SeqStart != 0 || a.Accepted.SeqEnd != 7 || a.Accepted.Agent != "a" || b.Accepted != b.Batch || b.Batch.SeqStart != 5 {
		t.Errorf("%+v", list)
	}
	if got, want := fmt.Sprint(s.asked), "[[eu local] true true [x] [eu local] true true [x] [all] [eu us] [eu us]]"; got != want {
		t.Errorf("asked for %s, want %s", got, want)
	}
}
