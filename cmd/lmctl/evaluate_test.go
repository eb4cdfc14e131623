package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// answering is a query service with one answer, which keeps the last request.
type answering struct {
	queryv1.UnimplementedQueryServiceServer
	asked  *queryv1.QueryRequest
	answer *queryv1.QueryResponse
}

func (s *answering) Query(_ context.Context, req *queryv1.QueryRequest) (*queryv1.QueryResponse, error) {
	s.asked = req
	return s.answer, nil
}

// TestQuerySaysWhatIsMissing: the values are on stdout; what is missing from them is the error of exit 3, and in JSON.
func TestQuerySaysWhatIsMissing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &answering{answer: &queryv1.QueryResponse{ResultType: "vector", Completeness: &queryv1.Completeness{},
		Series: []*queryv1.Series{{Labels: map[string]string{"__name__": "up", "job": "node", "agent": "a"}, Points: []*queryv1.Point{{TimeUnixMs: 1000, Value: 2.5}}}}}}
	g := grpc.NewServer()
	queryv1.RegisterQueryServiceServer(g, s)
	go func() { _ = g.Serve(l) }() // until Stop
	defer g.Stop()
	run := func(out format, args ...string) (string, error) {
		var b bytes.Buffer
		cmd := evaluateCommand(&out)
		cmd.SetArgs(append(args, "--addr", l.Addr().String()))
		cmd.SetOut(&b)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		return b.String(), err
	}
	out, err := run("", "up", "--min-token", "a:1", "--min-token", "b:2", "--strong", "--at", "2026-11-22T10:00:00Z")
	if err != nil || !strings.Contains(out, `up{agent="a", job="node"}   1970-01-01T00:00:01Z   2.5`) {
		t.Errorf("%v: %s", err, out)
	}
	if a := s.asked; a.GetExpression() != "up" || strings.Join(a.GetMinTokens(), " ") != "a:1 b:2" || !a.GetStrong() || a.GetTimeUnixMs() != 1795341600000 {
		t.Errorf("asked for %v", a)
	}
	s.answer.Completeness = &queryv1.Completeness{Partial: true, Reasons: []string{"BATCH_UNREADABLE: gone (2 batches)"},
		Missing: []*queryv1.Missing{{Code: "BATCH_UNREADABLE", Batches: 2, Shards: []uint32{7}, Hours: []*queryv1.HourRange{{StartUnixMs: 0, EndUnixMs: 3600e3}}}}}
	out, err = run("json", "up")
	var e *cli.ExitError
	if !errors.As(err, &e) || e.Code != cli.ExitFindings || !strings.Contains(e.Error(), "BATCH_UNREADABLE: gone (2 batches)") {
		t.Errorf("%v", err)
	}
	var v answerView
	if err := json.Unmarshal([]byte(out), &v); err != nil || !v.Partial || len(v.Missing) != 1 || v.Missing[0].Batches != 2 || v.Missing[0].Shards[0] != 7 || v.Missing[0].Hours[0][1] != "1970-01-01T01:00:00Z" {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := run("", "up", "--at", "yesterday"); !errors.As(err, &e) || e.Code != cli.ExitUsage {
		t.Errorf("%v", err)
	}
}
