package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/client"
	"lightmetrics.dev/lightmetrics/internal/cli"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// server is how to reach a query service.
type server struct{ service }

func (s *server) flags(cmd *cobra.Command) {
	s.service.flags(cmd, "127.0.0.1:4761", "query service")
}

func (s *server) ask(ctx context.Context, fn func(context.Context, queryv1.QueryServiceClient) error) error {
	return s.service.ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return fn(ctx, queryv1.NewQueryServiceClient(conn))
	})
}

// query asks with the public client, as any program does.
func (s *server) query(ctx context.Context, fn func(context.Context, *client.Querier) error) error {
	return s.service.ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return fn(ctx, client.NewQuerier(conn))
	})
}

type agentView struct {
	AgentID         string   `json:"agent_id"`
	BootID          string   `json:"boot_id"`
	FirstSeq        uint64   `json:"first_seq"`
	AcceptedThrough uint64   `json:"accepted_through"`
	LastSeq         uint64   `json:"last_seq"`
	Records         uint64   `json:"records"`
	Batches         uint64   `json:"batches"`
	Gaps            []string `json:"gaps"`
	Overlaps        []string `json:"overlaps"`
	LastAcceptedAt  string   `json:"last_accepted_at"`
	// Concurrent boots of the agent: another machine sends under its id.
	Concurrent []string `json:"concurrent_boot_ids"`
	// Regions that have these batches, of a list of several.
	Regions []string `json:"regions,omitempty"`
}

func ranges(rs []client.Range) []string {
	out := []string{}
	for _, r := range rs {
		out = append(out, r.String())
	}
	return out
}

// some writes the first ranges and how many there are more.
func some(rs []string) string {
	switch {
	case len(rs) == 0:
		return "-"
	case len(rs) > 3:
		return strings.Join(rs[:3], ",") + fmt.Sprintf(",… %d more", len(rs)-3)
	}
	return strings.Join(rs, ",")
}

// agentList is what a query service says of its agents, and what of it is amiss.
type agentList struct {
	views   []agentView
	rows    [][]string
	partial []string // why the list is partial
	shared  []string // agents that several machines send as
	gaps    int      // gaps and overlaps
	regions []regionView
}

// read asks for all of them.
func (l *agentList) read(ctx context.Context, q *client.Querier, regions []string, agent string) error {
	agents, completeness, err := q.AgentsOf(ctx, regions, agent)
	if err != nil {
		return err
	}
	l.regions = regionViews(completeness.Regions)
	if completeness.Partial {
		l.partial = []string{"the list is partial"}
		for _, r := range completeness.Reasons {
			l.partial = append(l.partial, r.String())
		}
	}
	for _, a := range agents {
		l.add(a)
	}
	return nil
}

func (l *agentList) add(a client.AgentState) {
	// Lists are never nil, so that JSON has [] and programs need no case for null.
	v := agentView{a.Boot.Agent, a.Boot.Boot, a.FirstSeq, a.AcceptedThrough, a.LastSeq, a.Records,
		a.Batches, ranges(a.Gaps), ranges(a.Overlaps), a.LastAccepted.Format(time.RFC3339), append([]string{}, a.Concurrent...), a.Regions}
	l.gaps += len(v.Gaps) + len(v.Overlaps)
	// Named once for each boot; findings removes the repetitions.
	if len(v.Concurrent) > 0 {
		l.shared = append(l.shared, v.AgentID)
	}
	l.views = append(l.views, v)
	l.rows = append(l.rows, []string{v.AgentID, v.BootID, fmt.Sprint(v.Batches), fmt.Sprint(v.Records),
		fmt.Sprintf("%d..%d", v.FirstSeq, v.AcceptedThrough), some(v.Gaps), some(v.Overlaps), v.LastAcceptedAt, some(v.Concurrent)})
}

// findings says what is amiss, the gravest alone; nil when nothing is.
func (l *agentList) findings() error {
	switch {
	// A partial list comes first: gaps in it may be only what is missing from the answer.
	case len(l.partial) > 0:
		return errors.New(strings.Join(l.partial, ": "))
	case len(l.shared) > 0:
		// Compact suffices, since the service lists agents in order.
		return fmt.Errorf("several machines send as agent %s", strings.Join(slices.Compact(l.shared), ", "))
	case l.gaps > 0:
		return fmt.Errorf("%d gaps and overlaps", l.gaps)
	}
	return nil
}

func agentsCommand(out *format) *cobra.Command {
	s := &server{}
	var agent string
	var regions []string
	cmd := &cobra.Command{
		Use:   "agents",
		Short: "Watermarks, gaps and overlaps of every agent and boot",
		Long: "Lists what a query service knows of every agent and boot. Exits 3 when there are gaps or\n" +
			"overlaps, when several machines send as one agent (CONCURRENT WITH names the other boots),\n" +
			"or when the list is partial. Of several regions, what one lacks of a boot and another has is no gap.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var l agentList
			if err := s.query(cmd.Context(), func(ctx context.Context, q *client.Querier) error { return l.read(ctx, q, regions, agent) }); err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), append([]agentView{}, l.views...), table{
				header: []string{"AGENT", "BOOT", "BATCHES", "RECORDS", "SEQUENCE", "GAPS", "OVERLAPS", "LAST ACCEPTED", "CONCURRENT WITH"}, rows: l.rows}); err != nil {
				return err
			}
			for _, r := range l.regions {
				fmt.Fprintln(cmd.ErrOrStderr(), r)
			}
			if err := l.findings(); err != nil {
				return &cli.ExitError{Code: cli.ExitFindings, Err: err}
			}
			return nil
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&agent, "agent", "", "only this agent")
	regionsFlag(cmd, &regions)
	_ = cmd.RegisterFlagCompletionFunc("agent", s.completeAgents) // the flag is there
	return cmd
}
