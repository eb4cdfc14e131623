package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/coordinator"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/run"
	"lightmetrics.dev/lightmetrics/pkg/work"
)

// reprocessView is how far an order came.
type reprocessView struct {
	ID    string            `json:"id"`
	Order reprocessOrder    `json:"order"`
	Done  reprocessProgress `json:"done"`
	Dry   bool              `json:"dry_run"`
}

func (v reprocessView) table() table {
	return table{header: []string{"ID", "ACCEPTED FROM", "TO", "BATCHES", "SEGMENTS", "HOURS"}, rows: [][]string{{
		orDash(v.ID), v.Order.From.Format(time.RFC3339), v.Order.To.Format(time.RFC3339), fmt.Sprint(v.Done.Batches), fmt.Sprint(v.Done.Segments), fmt.Sprint(v.Done.Messages)}}}
}

// parseTime reads RFC 3339, or a date as its start in UTC.
func parseTime(s string) (time.Time, error) {
	if t, err := time.Parse("2006-01-02", s); err == nil {
		return t, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("%q is neither a date nor a time like 2006-01-02T15:04:05Z", s)
	}
	return t.UTC(), nil
}

func reprocessCommand(out *format) *cobra.Command {
	p := &pendingWork{}
	var (
		from, to, agent, resume string
		dry                     bool
	)
	cmd := &cobra.Command{
		Use:   "reprocess URL --from T",
		Short: "Give accepted batches to the rollup workers again",
		Long: "Walks the batches that were accepted from --from until before --to, writes them into the rollups' intake\n" +
			"again and wakes the owners of their shards. What a published set holds already changes nothing; what was\n" +
			"lost on the way makes a new generation of its hours.\n\n" +
			"The order is a pending job (log reprocess/ID): a run that was interrupted goes on from its last checkpoint\n" +
			"with the same arguments, or with --resume ID; lmctl jobs shows and cancels it.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			usage := func(err error) error { return &cli.ExitError{Code: cli.ExitUsage, Err: err} }
			order := reprocessOrder{Agent: agent, To: time.Now().UTC().Truncate(time.Second)}
			var err error
			switch {
			case resume != "" && (from != "" || to != "" || agent != "" || dry):
				return usage(errors.New("--resume goes alone: the order has the rest"))
			case resume == "" && from == "":
				return usage(errors.New("--from or --resume is needed"))
			}
			if from != "" {
				if order.From, err = parseTime(from); err != nil {
					return usage(fmt.Errorf("--from: %w", err))
				}
			}
			if to != "" {
				if order.To, err = parseTime(to); err != nil {
					return usage(fmt.Errorf("--to: %w", err))
				}
			}
			if resume == "" {
				if err := order.validate(); err != nil {
					return usage(err)
				}
			}
			store, err := openBucket(ctx, args[0])
			if err != nil {
				return err
			}
			shards, err := intake.ReadShards(ctx, store)
			if errors.Is(err, objstore.ErrNotFound) {
				return &cli.ExitError{Code: cli.ExitFailed, Err: errors.New("the bucket has no rollups: their number of shards is not fixed")}
			}
			if err != nil {
				return reached(err)
			}
			r := &reprocess{store: store, shards: shards, run: run.RandomID(), page: reprocessPage, now: time.Now, tell: func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }}
			v := reprocessView{Order: order, Dry: dry}
			if dry {
				v.Done, err = r.count(ctx, order)
			} else {
				err = p.ask(func(s *coordinator.PendingWork) error {
					r.queue, r.table = s, s
					v.ID, v.Order, v.Done, err = r.do(ctx, order, resume)
					return err
				})
			}
			if err != nil {
				return reached(err)
			}
			return out.write(cmd.OutOrStdout(), v, v.table())
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "first time of acceptance: RFC 3339, or a date (UTC)")
	cmd.Flags().StringVar(&to, "to", "", "time of acceptance to end before (default now)")
	cmd.Flags().StringVar(&agent, "agent", "", "only this agent's batches")
	cmd.Flags().StringVar(&resume, "resume", "", "id of an order to go on with")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only count")
	p.flags(cmd)
	return cmd
}

// reprocessOrder is what is to be done again; it is kept as the job's body.
type reprocessOrder struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"` // not included
	Agent string    `json:"agent,omitempty"`
}

func (o reprocessOrder) validate() error {
	if !o.From.Before(o.To) {
		return fmt.Errorf("from %s is not before to %s", o.From.Format(time.RFC3339), o.To.Format(time.RFC3339))
	}
	if o.From.Year() < 2000 || o.To.Sub(o.From) > 20*365*24*time.Hour {
		return errors.New("times before 2000, or 20 years of them")
	}
	return nil
}

func (o reprocessOrder) body() []byte {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // plain times
	}
	return b
}

// reprocessProgress is the job's checkpoint.
type reprocessProgress struct {
	// Hour and After say where to go on: the hour of acceptance, and the last key done in it.
	Hour  time.Time `json:"hour"`
	After string    `json:"after"`
	// What was done so far; a piece that was lost and done again counts once.
	Batches  uint64 `json:"batches"`
	Segments uint64 `json:"segments"`
	Messages uint64 `json:"messages"` // (shard, hour) that owners were told of
}

// errNoOrder: nothing is pending under the id.
var errNoOrder = fmt.Errorf("no such order is pending: %w", work.ErrNotFound)
