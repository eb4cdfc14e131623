package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

func journalCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "journal", Short: "See how far the journal is written, folded and read; end a dead run; go on without a lost file"}
	cmd.AddCommand(journalStatus(out), journalShow(out), journalFence(out), journalDrop(out))
	return cmd
}

// quietLong is after what time without a fold, or without a segment, somebody should look.
const quietLong = time.Hour

func journalStatus(out *format) *cobra.Command {
	var all bool
	var long time.Duration
	cmd := &cobra.Command{
		Use:   "status URL",
		Short: "Runs, folded files, and how far every reader has read",
		Long: "Reads the journal once, as its followers do, and says which runs are open and who writes them, how much waits to be\n" +
			"folded, what the folded files hold, and how far behind the ledgers' checkpoint and the progress of each shard's\n" +
			"rollups are. ENTRIES of what is folded are at most that many: a file is counted whole. Times are the store's, but for\n" +
			"OLDEST, which is a collector's. Exits 3 when the journal is not known to be complete, when entries wait unfolded, or a\n" +
			"run that is no spooler's has no news, for longer than --long, or when a reader is ahead of the head (the bucket was\n" +
			"restored).\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v, err := surveyJournal(cmd.Context(), store, all, long)
			if err != nil {
				return reached(err)
			}
			if out.String() != "table" {
				err = out.write(cmd.OutOrStdout(), v, table{})
			} else {
				err = writeJournal(cmd, out, v)
			}
			if err == nil && len(v.Findings) > 0 {
				err = &cli.ExitError{Code: cli.ExitFindings, Err: errors.New(strings.Join(v.Findings, "; "))}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "runs that have ended, too, as far as the head still names them")
	cmd.Flags().DurationVar(&long, "long", quietLong, "how long entries may wait to be folded, and a run may have no news")
	return cmd
}

func writeJournal(cmd *cobra.Command, out *format, v journalView) error {
	w := cmd.OutOrStdout()
	parts := []table{{header: []string{"JOURNAL", ""}, rows: [][]string{
		{"read through", orDash(v.Through)}, {"complete", orDash(v.Begun)},
		{"head", fmt.Sprintf("%d, moved at %s, %d bytes", v.Head.Number, orDash(v.Head.MovedAt), v.Head.Bytes)},
		{"forgotten", fmt.Sprint(v.Head.Forgotten)}, {"lost", fmt.Sprint(v.Head.Lost)},
		{"folded files", fmt.Sprintf("%d in the head, %d lists", v.Head.Files, v.Head.Lists)},
		{"folded entries", fmt.Sprintf("%d, %d bytes", v.Head.Entries, v.Head.FileBytes)},
		{"fences", fmt.Sprint(v.Head.Fences)},
		{"open runs", fmt.Sprint(v.OpenRuns)},
		{"ended runs in the head", fmt.Sprint(v.EndedRuns)},
		{"waits to be folded", fmt.Sprintf("%d segments, %d entries, oldest %s", v.Waiting.Segments, v.Waiting.Entries, orDash(v.Waiting.Oldest))},
	}}}
	runs := table{header: []string{"RUN", "WRITER", "ROLE", "STATE", "SEGMENTS", "FOLDED", "WAITING", "OPENED", "LAST SEGMENT", "AGE"}}
	for _, r := range v.Runs {
		runs.rows = append(runs.rows, []string{r.Run, orDash(r.Writer), orDash(r.Role), r.State, fmt.Sprint(r.Segments), fmt.Sprint(r.Folded),
			fmt.Sprint(r.WaitingEntries), orDash(r.OpenedAt), orDash(r.LastAt), orDash(r.Age)})
	}
	readers := table{header: []string{"READER", "AT HEAD", "MOVES BEHIND", "SEGMENTS", "ENTRIES", "OLDEST", "PENDING", "WRITTEN"}}
	for _, r := range v.Readers {
		readers.rows = append(readers.rows, []string{r.Name, fmt.Sprint(r.Head), fmt.Sprint(r.Moves), fmt.Sprint(r.Segments), fmt.Sprint(r.Entries),
			orDash(r.Oldest), fmt.Sprint(r.Pending), orDash(r.WrittenAt)})
	}
	for i, t := range append(parts, runs, readers) {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := out.write(w, nil, t); err != nil {
			return err
		}
	}
	return nil
}

func journalFence(out *format) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "fence URL RUN",
		Short: "End a run whose writer is gone",
		Long: "Creates a fence behind the last segment of RUN (32 hex digits, as in \"lmctl journal status\"). Reconcilers do that by\n" +
			"themselves, after journal.fence_after without a segment, for every run but those of collectors with local_spool.\n" +
			"Nothing that was answered is lost: if the writer lives, it finds the fence with its next segment, opens a new run, and\n" +
			"answers from that one. The fence stays in the bucket. Whether the run has ended says a poll afterwards, not the answer\n" +
			"to the create: the segment may have been folded meanwhile.\n\n" +
			"A spooler's run says that its collector may have accepted batches, on its own disk, that nobody can read yet; answers\n" +
			"are marked LOCAL_SPOOL as long as it is open. Ending it takes the mark away, so it needs --yes: do it when that disk\n" +
			"is lost for good. What the lost disk had accepted is then lost, too, and stays a gap in its agents' ledgers.\n\n" +
			"Needs credentials that may create objects below journal/v1/run=, as those of every service may.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(2),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "end a spooler's run: its disk is lost for good")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run, err := journal.ParseRunID(args[1])
		if err != nil {
			return usageError("%w", err)
		}
		store, err := openBucket(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		v, err := fenceRun(cmd.Context(), store, run, yes)
		if err != nil {
			return reached(err)
		}
		return out.write(cmd.OutOrStdout(), v, table{header: []string{"RUN", "WRITER", "ROLE", "STATE", "SEGMENTS"},
			rows: [][]string{{v.Run, orDash(v.Writer), orDash(v.Role), v.State, fmt.Sprint(v.Segments)}}})
	}
	return cmd
}

// fenceRun ends a run, and says from another poll what became of it.
func fenceRun(ctx context.Context, store objstore.Store, run journal.RunID, spoolIsLost bool) (runView, error) {
	authority, err := accept.ReadAuthority(ctx, store)
	if err != nil {
		return runView{}, err
	}
	before, err := readJournal(ctx, store, authority.AuthorityID)
	if err != nil {
		return runView{}, err
	}
	r := before.runs[run]
	switch {
	case r == nil:
		return runView{}, &cli.ExitError{Code: cli.ExitFailed, Err: fmt.Errorf("run %s: %w: it never began, or ended so long ago that the head has forgotten it", run, objstore.ErrNotFound)}
	case r.state != stateOpen:
		return r.view(before.through), nil
	case r.role == journal.RoleSpooler && !spoolIsLost:
		return runView{}, usageError("run %s is of the collector %q, which accepts on its own disk: ending it hides what that disk may still hold; say --yes if it is lost for good", run, r.writer)
	}
	if err := journal.End(ctx, store, run); err != nil {
		return runView{}, err
	}
	after, err := readJournal(ctx, store, authority.AuthorityID)
	if err != nil {
		return runView{}, err
	}
	now := after.runs[run]
	if now == nil || now.state == stateOpen {
		return runView{}, fmt.Errorf("end run %s: %w: it goes on, try again", run, objstore.ErrUnavailable)
	}
	return now.view(after.through), nil
}
