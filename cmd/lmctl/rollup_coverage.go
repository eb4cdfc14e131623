package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
)

// recently accepted batches are not checked.
const recently = 10 * time.Minute

type uncoveredView struct {
	Hour    string `json:"hour"`
	Shard   string `json:"shard"`
	Batches uint64 `json:"batches"`
	Records uint64 `json:"records"`
	First   string `json:"first_accepted_at"`
	Last    string `json:"last_accepted_at"`
	Example string `json:"example"`
	None    bool   `json:"nothing_published"`
}

type coverageView struct {
	Batches    uint64          `json:"batches"`
	Pending    uint64          `json:"pending"`
	Unreadable int             `json:"unreadable_hours"`
	Uncovered  []uncoveredView `json:"uncovered"`
}

func rollupCoverage(out *format) *cobra.Command {
	var from, to string
	cmd := &cobra.Command{
		Use:   "coverage URL --from T",
		Short: "Find accepted batches that no block has and that no worker knows of",
		Long: "Walks the batches that were accepted from --from until before --to (default 10 minutes ago), and checks whether\n" +
			"the blocks of their hours have them, unless they are pending by the progress of their shard. Exits 3 when one is\n" +
			"missing: lmctl reprocess with the same times mends that.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// A batch that is accepted while this command runs would be reported as missing.
			o := reprocess.Request{To: time.Now().UTC().Add(-recently)}
			var err error
			if from == "" {
				return usageError("--from is needed")
			}
			if o.From, err = parseTime(from); err != nil {
				return usageError("--from: %w", err)
			}
			if to != "" {
				if o.To, err = parseTime(to); err != nil {
					return usageError("--to: %w", err)
				}
			}
			if err := o.Validate(); err != nil {
				return usageError("%w", err)
			}
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v, err := coverage(cmd.Context(), store, o, time.Now, func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) })
			if err != nil {
				return reached(err)
			}
			t := table{header: []string{"HOUR", "SHARD", "BATCHES", "RECORDS", "FIRST ACCEPTED AT", "LAST", "NOTHING PUBLISHED"}}
			for _, u := range v.Uncovered {
				t.rows = append(t.rows, []string{u.Hour, u.Shard, fmt.Sprint(u.Batches), fmt.Sprint(u.Records), u.First, u.Last, fmt.Sprint(u.None)})
			}
			if err := out.write(cmd.OutOrStdout(), v, t); err != nil {
				return err
			}
			if len(v.Uncovered) > 0 || v.Unreadable > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d hours of shards lack accepted batches, %d hours can't be checked", len(v.Uncovered), v.Unreadable)}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "first time of acceptance: RFC 3339, or a date (UTC)")
	cmd.Flags().StringVar(&to, "to", "", "time of acceptance to end before")
	return cmd
}

func coverage(ctx context.Context, store objstore.Store, o reprocess.Request, now func() time.Time, report func(string)) (coverageView, error) {
	v := coverageView{Uncovered: []uncoveredView{}}
	r, err := newRepairer(ctx, store, now)
	if err != nil {
		return v, err
	}
	c, err := r.Coverage(ctx)
	if err != nil {
		return v, err
	}
	_, err = history.Reader{Store: store, Authority: r.AuthorityID()}.Read(ctx, o.Selection(), 0, func(ctx context.Context, p history.Page) error {
		for i := range p.Entries {
			if err := c.Check(ctx, p.Entries[i].Batch()); err != nil {
				return err
			}
		}
		// Once for each file: a walk over months takes long, and silence looks like a hang.
		report(fmt.Sprintf("%d batches so far", c.Batches))
		return nil
	})
	if err != nil {
		return v, err
	}
	v.Batches, v.Pending, v.Unreadable = c.Batches, c.Pending, len(c.Unreadable)
	for _, u := range c.Uncovered() {
		v.Uncovered = append(v.Uncovered, viewUncovered(u))
	}
	return v, nil
}

func viewUncovered(u repair.Uncovered) uncoveredView {
	return uncoveredView{u.Hour.String(), u.Shard.String(), u.Batches, u.Records, when(u.First), when(u.Last), u.Example.String(), u.None}
}
