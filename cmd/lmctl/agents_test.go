package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// listing is a query service that knows some agents.
type listing struct {
	queryv1.UnimplementedQueryServiceServer
	agents []*queryv1.Agent
}

func (l *listing) ListAgents(context.Context, *queryv1.ListAgentsRequest) (*queryv1.ListAgentsResponse, error) {
	return &queryv1.ListAgentsResponse{Agents: l.agents, Completeness: &queryv1.Completeness{}}, nil
}

// TestAgentsFindsSharedIDs: the list names the other boots of an id that two machines use, and
// exits as it does for other findings.
func TestAgentsFindsSharedIDs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, g := &listing{}, grpc.NewServer()
	queryv1.RegisterQueryServiceServer(g, s)
	go func() { _ = g.Serve(l) }() // until Stop
	defer g.Stop()
	list := func() (string, error) {
		var b bytes.Buffer
		cmd := agentsCommand(new(format))
		cmd.SetArgs([]string{"--addr", l.Addr().String()})
		cmd.SetOut(&b)
		err := cmd.ExecuteContext(t.Context())
		return b.String(), err
	}
	one := &queryv1.Agent{AgentId: "web-1", BootId: "one", RecordCount: 1}
	two := &queryv1.Agent{AgentId: "web-1", BootId: "two", RecordCount: 1}
	s.agents = []*queryv1.Agent{one, two}
	if out, err := list(); err != nil || !strings.Contains(out, "CONCURRENT WITH") {
		t.Fatalf("%v: %s", err, out)
	}
	one.ConcurrentBootIds, two.ConcurrentBootIds = []string{"two"}, []string{"one"}
	out, err := list()
	var e *cli.ExitError
	if !errors.As(err, &e) || e.Code != cli.ExitFindings || e.Error() != "several machines send as agent web-1" {
		t.Errorf("%v", err)
	}
	if rows := strings.Split(out, "\n"); len(rows) < 3 || !strings.HasSuffix(strings.TrimSpace(rows[1]), "two") || !strings.HasSuffix(strings.TrimSpace(rows[2]), "one") {
		t.Errorf("%s", out)
	}
}
