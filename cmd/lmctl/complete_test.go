package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// knownAgents is a query service that knows some agents.
type knownAgents struct {
	queryv1.UnimplementedQueryServiceServer
	agents []*queryv1.Agent
}

func (k *knownAgents) ListAgents(context.Context, *queryv1.ListAgentsRequest) (*queryv1.ListAgentsResponse, error) {
	return &queryv1.ListAgentsResponse{Agents: k.agents, Completeness: &queryv1.Completeness{}}, nil
}

// TestAgentsAreCompleted: the shell is given the ids that the query service knows, each
// once; a service that is away gives none and no error.
func TestAgentsAreCompleted(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, g := &knownAgents{}, grpc.NewServer()
	queryv1.RegisterQueryServiceServer(g, s)
	go func() { _ = g.Serve(l) }() // until Stop
	defer g.Stop()
	s.agents = []*queryv1.Agent{{AgentId: "web-2", BootId: "a"}, {AgentId: "web-1", BootId: "a"}, {AgentId: "web-1", BootId: "b"}}
	complete := func() string {
		root := &cobra.Command{Use: "lmctl"}
		root.AddCommand(agentsCommand(new(format)))
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&bytes.Buffer{})
		root.SetArgs([]string{"__complete", "agents", "--addr", l.Addr().String(), "--agent", ""})
		if err := cli.Execute(t.Context(), root); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	if got := complete(); !strings.HasPrefix(got, "web-1\nweb-2\n:") {
		t.Errorf("%q", got)
	}
	g.Stop()
	if got := complete(); !strings.HasPrefix(got, ":") {
		t.Errorf("of a service that is away: %q", got)
	}
}
