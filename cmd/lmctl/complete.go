package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/shard"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

// completeTimeout bounds a question for completion: a shell waits for the answer, and
// none is better than a late one.
const completeTimeout = 2 * time.Second

// completedAgents bounds the suggestions: more are of no use.
const completedAgents = 1000

// completeAgents gives the ids of agents that the query service knows.
func (s *server) completeAgents(cmd *cobra.Command, _ []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	// An error is dropped: a message in the middle of the line that somebody types helps nobody.
	_ = s.ask(ctx, func(ctx context.Context, c queryv1.QueryServiceClient) error {
		resp, err := c.ListAgents(ctx, &queryv1.ListAgentsRequest{PageSize: completedAgents})
		for _, a := range resp.GetAgents() {
			ids = append(ids, a.GetAgentId())
		}
		return err
	})
	// An agent has an entry for each of its boots, and completes once.
	slices.Sort(ids)
	return slices.Compact(ids), cobra.ShellCompDirectiveNoFileComp
}

// completeTopics gives the topics of the shards that the coordinator knows.
func (p *pendingWork) completeTopics(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	_ = p.service.ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		resp, err := coordinatorv1.NewOwnershipServiceClient(conn).ListShards(ctx, &coordinatorv1.ListShardsRequest{Kind: "rollup"})
		// The topic of reprocessing exists once and not for each shard.
		names = append(names, reprocess.Topic)
		for _, s := range resp.GetShards() {
			names = append(names, snapshotTopics+shard.ID(s.GetShard()).String())
		}
		return err
	})
	return names, cobra.ShellCompDirectiveNoFileComp
}
