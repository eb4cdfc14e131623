package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// ownershipAPI is how to reach a coordinator, and of which kind of workers it is asked.
type ownershipAPI struct {
	service
	kind string
}

func (c *ownershipAPI) flags(cmd *cobra.Command) {
	c.service.flags(cmd, "127.0.0.1:4781", "coordinator")
	cmd.PersistentFlags().StringVar(&c.kind, "kind", "rollup", "kind of workers; rollup is the only one that owns shards")
}

func (c *ownershipAPI) ask(ctx context.Context, fn func(context.Context, coordinatorv1.OwnershipServiceClient) error) error {
	return c.service.ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return fn(ctx, coordinatorv1.NewOwnershipServiceClient(conn))
	})
}

func shardsCommand(out *format) *cobra.Command {
	c := &ownershipAPI{}
	cmd := &cobra.Command{Use: "shards", Short: "Shards, their owners and moves; drain a worker"}
	cmd.AddCommand(shardsList(out, c), shardsWorkers(out, c), shardsMoves(out, c), shardsDrain(out, c))
	c.flags(cmd)
	return cmd
}

type shardView struct {
	Shard     uint32 `json:"shard"`
	Owner     string `json:"owner"`
	Target    string `json:"target"`
	Epoch     uint64 `json:"epoch"`
	Fence     uint64 `json:"fence"`
	GrantedAt string `json:"granted_at"`
}

// when is a time of Unix nanoseconds; 0 is "-".
func when(ns int64) string {
	if ns == 0 {
		return "-"
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func shardsList(out *format, c *ownershipAPI) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List shards with owner and epoch; exits 3 when one is not where it should be",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views, rows, misplaced := []shardView{}, [][]string{}, 0
			err := c.ask(cmd.Context(), func(ctx context.Context, cl coordinatorv1.OwnershipServiceClient) error {
				r, err := cl.ListShards(ctx, &coordinatorv1.ListShardsRequest{Kind: c.kind})
				for _, s := range r.GetShards() {
					v := shardView{s.GetShard(), s.GetOwner(), s.GetTarget(), s.GetEpoch(), s.GetFence(), when(s.GetGrantedAtUnixNs())}
					// During a move the owner differs from the target; a shard that stays so needs a
					// person.
					if v.Owner == "" || v.Owner != v.Target {
						misplaced++
					}
					views = append(views, v)
					rows = append(rows, []string{fmt.Sprintf("%04d", v.Shard), orDash(v.Owner), orDash(v.Target), fmt.Sprint(v.Epoch), fmt.Sprint(v.Fence), v.GrantedAt})
				}
				return err
			})
			if err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), views, table{header: []string{"SHARD", "OWNER", "TARGET", "EPOCH", "FENCE", "GRANTED AT"}, rows: rows}); err != nil {
				return err
			}
			if misplaced > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d of %d shards have no owner, or are on their way to another", misplaced, len(views))}
			}
			return nil
		},
	}
}

type workerView struct {
	WorkerID     string `json:"worker_id"`
	Address      string `json:"address"`
	Held         uint32 `json:"held"`
	Target       uint32 `json:"target"`
	State        string `json:"state"`
	RegisteredAt string `json:"registered_at"`
}

func shardsWorkers(out *format, c *ownershipAPI) *cobra.Command {
	return &cobra.Command{
		Use:   "workers",
		Short: "List live workers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views, rows := []workerView{}, [][]string{}
			err := c.ask(cmd.Context(), func(ctx context.Context, cl coordinatorv1.OwnershipServiceClient) error {
				r, err := cl.ListWorkers(ctx, &coordinatorv1.ListWorkersRequest{Kind: c.kind})
				for _, w := range r.GetWorkers() {
					v := workerView{w.GetWorkerId(), w.GetAddress(), w.GetHeld(), w.GetTarget(), "live", when(w.GetRegisteredAtUnixNs())}
					switch {
					// That another session has taken the name of this worker says more than that it was
					// draining.
					case w.GetReplaced():
						v.State = "replaced"
					case w.GetDraining():
						v.State = "draining"
					}
					views = append(views, v)
					rows = append(rows, []string{v.WorkerID, orDash(v.Address), fmt.Sprint(v.Held), fmt.Sprint(v.Target), v.State, v.RegisteredAt})
				}
				return err
			})
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), views, table{header: []string{"WORKER", "ADDRESS", "HOLDS", "TARGET", "STATE", "REGISTERED AT"}, rows: rows})
		},
	}
}

type moveView struct {
	At      string   `json:"at"`
	Joined  []string `json:"joined"`
	Left    []string `json:"left"`
	Workers uint32   `json:"workers"`
	Shards  []uint32 `json:"shards"`
}

func shardsMoves(out *format, c *ownershipAPI) *cobra.Command {
	return &cobra.Command{
		Use:   "moves",
		Short: "List the last changes of the assignment, the newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views, rows := []moveView{}, [][]string{}
			err := c.ask(cmd.Context(), func(ctx context.Context, cl coordinatorv1.OwnershipServiceClient) error {
				r, err := cl.ListMoves(ctx, &coordinatorv1.ListMovesRequest{Kind: c.kind})
				for _, m := range r.GetMoves() {
					v := moveView{when(m.GetAtUnixNs()), append([]string{}, m.GetJoined()...), append([]string{}, m.GetLeft()...),
						m.GetWorkers(), append([]uint32{}, m.GetShards()...)}
					names := make([]string, len(v.Shards))
					for i, s := range v.Shards {
						names[i] = fmt.Sprint(s)
					}
					views = append(views, v)
					rows = append(rows, []string{v.At, orDash(strings.Join(v.Joined, ",")), orDash(strings.Join(v.Left, ",")),
						fmt.Sprint(v.Workers), fmt.Sprint(len(v.Shards)), some(names)})
				}
				return err
			})
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), views, table{header: []string{"AT", "JOINED", "LEFT", "WORKERS", "MOVED", "SHARDS"}, rows: rows})
		},
	}
}

type drainView struct {
	WorkerID string `json:"worker_id"`
	Held     uint32 `json:"held"`
	Draining bool   `json:"draining"`
}

// drainEvery is how often --wait asks.
const drainEvery = 200 * time.Millisecond

func shardsDrain(out *format, c *ownershipAPI) *cobra.Command {
	var undo bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "drain WORKER",
		Short: "Move all shards of a worker to others; it stays registered, without shards, until it restarts or --undo",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v := drainView{WorkerID: args[0], Draining: !undo}
			end := time.Now().Add(wait)
			for {
				err := c.ask(cmd.Context(), func(ctx context.Context, cl coordinatorv1.OwnershipServiceClient) error {
					r, err := cl.Drain(ctx, &coordinatorv1.DrainRequest{Kind: c.kind, WorkerId: args[0], Undo: undo})
					v.Held = r.GetHeld()
					return err
				})
				if err != nil {
					return err
				}
				// Drain is repeated as the question: it changes nothing the second time, and answers with
				// what the worker still holds.
				if undo || v.Held == 0 || !time.Now().Before(end) {
					break
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "%s still holds %d shards\n", v.WorkerID, v.Held)
				select {
				case <-time.After(drainEvery):
				case <-cmd.Context().Done():
					return cmd.Context().Err()
				}
			}
			if err := out.write(cmd.OutOrStdout(), v, table{header: []string{"WORKER", "DRAINING", "HOLDS"},
				rows: [][]string{{v.WorkerID, fmt.Sprint(v.Draining), fmt.Sprint(v.Held)}}}); err != nil {
				return err
			}
			if wait > 0 && !undo && v.Held > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("the worker still holds shards")}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "give the worker shards again")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long for the worker to hold nothing; exits 3 when it still does")
	return cmd
}
