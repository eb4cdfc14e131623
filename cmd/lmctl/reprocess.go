package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// reprocessView is how far a request has come.
type reprocessView struct {
	ID      string             `json:"id"`
	Request reprocess.Request  `json:"request"`
	Done    reprocess.Progress `json:"done"`
	Dry     bool               `json:"dry_run"`
}

func (v reprocessView) table() table {
	return table{header: []string{"ID", "ACCEPTED FROM", "TO", "BATCHES", "SHARDS", "HOURS"}, rows: [][]string{{
		v.ID, v.Request.From.Format(time.RFC3339), v.Request.To.Format(time.RFC3339), fmt.Sprint(v.Done.Batches), fmt.Sprint(v.Done.Shards), fmt.Sprint(v.Done.Hours)}}}
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

// reprocessFlags are those of lmctl reprocess.
type reprocessFlags struct {
	from, to, agent string
	dry, detach     bool
}

// request reads the flags.
func (f reprocessFlags) request(args []string) (reprocess.Request, error) {
	o := reprocess.Request{Agent: f.agent, To: time.Now().UTC().Truncate(time.Second)}
	var err error
	switch {
	case f.from == "":
		return o, usageError("--from is needed")
	// A URL without --dry-run is refused and not ignored: the workers' bucket may be another one.
	case f.dry != (len(args) == 1):
		return o, usageError("the URL of a bucket goes with --dry-run, and only with it: workers know their own")
	case f.dry && f.detach:
		return o, usageError("--detach has no effect on a dry run")
	}
	if o.From, err = parseTime(f.from); err != nil {
		return o, usageError("--from: %w", err)
	}
	if f.to != "" {
		if o.To, err = parseTime(f.to); err != nil {
			return o, usageError("--to: %w", err)
		}
	}
	if err := o.Validate(); err != nil {
		return o, usageError("%w", err)
	}
	return o, nil
}

func reprocessCommand(out *format) *cobra.Command {
	p, f := &pendingWork{}, reprocessFlags{}
	cmd := &cobra.Command{
		Use:   "reprocess --from T [--dry-run URL]",
		Short: "Have accepted batches given to the rollup workers again",
		Long: "Requests that the rollup workers read the journal again from before the batches which were accepted from --from\n" +
			"until before --to. Batches that a block holds already change nothing; batches that were lost make a new\n" +
			"generation of their hours. lmctl rollup coverage says when there are none any more.\n\n" +
			"The request is a job of pending work (log reprocess/ID). A rollup worker does it, and another one continues from the\n" +
			"last checkpoint if that one ends. This command waits until it is done. When it is interrupted, or with --detach,\n" +
			"the request continues: lmctl jobs watch --log reprocess shows it, lmctl jobs cancel ends it. If an equal request is\n" +
			"pending, no second one is made, and this command waits for the first.\n\n" +
			"With --dry-run this command reads the bucket itself and only counts.\n\n" + bucketHelp,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := f.request(args)
			if err != nil {
				return err
			}
			v := reprocessView{ID: o.ID(), Request: o, Dry: f.dry}
			if f.dry {
				v.Done, err = countRequest(cmd.Context(), args[0], o)
			} else {
				report := func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }
				err = p.ask(func(s *coordinator.PendingWork) error {
					v.Done, err = submitRequest(cmd.Context(), s, s, o, f.detach, report)
					return err
				})
			}
			if err != nil {
				return reached(err)
			}
			return out.write(cmd.OutOrStdout(), v, v.table())
		},
	}
	cmd.Flags().StringVar(&f.from, "from", "", "first time of acceptance: RFC 3339, or a date (UTC)")
	cmd.Flags().StringVar(&f.to, "to", "", "time of acceptance to end before (default now)")
	cmd.Flags().StringVar(&f.agent, "agent", "", "only this agent's batches")
	cmd.Flags().BoolVar(&f.dry, "dry-run", false, "only count, in the bucket URL")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "submit the request and do not wait for it")
	p.flags(cmd)
	return cmd
}

// countRequest counts what a request is about.
func countRequest(ctx context.Context, url string, o reprocess.Request) (reprocess.Progress, error) {
	store, err := openBucket(ctx, url)
	if err != nil {
		return reprocess.Progress{}, err
	}
	authority, n, err := rollupFacts(ctx, store)
	if err != nil {
		return reprocess.Progress{}, err
	}
	return reprocess.NewHandler(store, authority, n).Count(ctx, o)
}

// pollRequest is the time between two reads of the state of a request.
const pollRequest = time.Second

// submitRequest submits the request and, unless detached, waits until it is done.
func submitRequest(ctx context.Context, q work.Queue, t work.Table, o reprocess.Request, detach bool, report func(string)) (reprocess.Progress, error) {
	k, found, err := reprocess.Submit(ctx, q, t, o)
	if err != nil {
		return reprocess.Progress{}, err
	}
	if found {
		report(fmt.Sprintf("an equal request is pending: %s", k))
	} else {
		report(fmt.Sprintf("request %s waits for a rollup worker", k))
	}
	if detach {
		return reprocess.Progress{}, nil
	}
	return waitForRequest(ctx, t, k, report)
}

// waitForRequest follows the job until its row is gone. Its log then has the result.
func waitForRequest(ctx context.Context, t work.Table, k work.Key, report func(string)) (last reprocess.Progress, err error) {
	for {
		row, err := t.Get(ctx, k)
		switch {
		// The row goes when the job is done or cancelled; which of both, the log's result tells.
		case errors.Is(err, work.ErrNotFound):
			return requestResult(ctx, t, k)
		case ctx.Err() != nil:
			return last, fmt.Errorf("request %s continues without this command: %w", k, ctx.Err())
		case err != nil:
			return last, err
		case jobStatus(row) == "stuck":
			return last, &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("request %s failed %d times; lmctl jobs dead %s has the reason", k, row.Attempts, reprocess.Topic)}
		}
		was := last.Batches
		// A state that cannot be parsed, such as that of a request that nobody has begun, leaves the
		// progress as it was.
		if p, err := reprocess.ParseProgress(row.State); err == nil {
			last = p
		}
		if last.Batches != was {
			report(fmt.Sprintf("%d batches so far", last.Batches))
		}
		_ = run.WallClock{}.Sleep(ctx, pollRequest) // the next round finds that ctx has ended
	}
}

// requestResult reads the result of a finished request from its log.
func requestResult(ctx context.Context, t work.Table, k work.Key) (p reprocess.Progress, err error) {
	log, err := t.Log(ctx, k.Log)
	if err != nil {
		return p, err
	}
	// A cancelled job leaves no result, so one that cannot be parsed counts as cancelled; a newer version
	// is the exception, a result that only this command cannot read.
	if p, err = reprocess.ParseProgress(log.Result); errors.Is(err, record.ErrNewerVersion) {
		return p, fmt.Errorf("result of request %s: %w", k, err)
	}
	if log.Last != k.Number || err != nil || !p.Done {
		return p, &cli.ExitError{Code: cli.ExitFailed, Err: fmt.Errorf("request %s was cancelled", k)}
	}
	return p, nil
}
