package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// dropView is what is dropped.
type dropView struct {
	DryRun bool `json:"dry_run"`
	// Head is the number of the move that did it; 0 for a dry run.
	Head  uint64        `json:"head"`
	Files []droppedView `json:"files"`
}

type droppedView struct {
	Key     string `json:"key"`
	Entries uint64 `json:"entries"`
	Bytes   uint64 `json:"bytes"`
	// From and To are the first and the last sample of the batches that it named.
	From string `json:"from"`
	To   string `json:"to"`
}

func journalDrop(out *format) *cobra.Command {
	var dry, yes bool
	cmd := &cobra.Command{
		Use:   "drop URL KEY...",
		Short: "Go on without a folded file that is lost for good",
		Long: "Takes folded files, or lists of them, out of the journal's head. Query nodes, reconcilers and rollup workers that have not read\n" +
			"such a file stop at it, because it names batches that stand nowhere else; their logs name the KEY, as lmctl fsck does. Put its\n" +
			"bytes back, if there are any: from a copy of the bucket, a version, a snapshot, or with lmctl store repair. This is for when there\n" +
			"are none.\n\n" +
			"No batch is lost by it: manifests and frames are where they were. But until a full audit has found the manifests and entered them\n" +
			"again, nobody knows which batches the file named, so every answer says JOURNAL_INCOMPLETE, and nothing is said to be complete. A\n" +
			"reconciler begins that audit by itself within minutes (lmctl audit list). Whoever had read the file goes on as if nothing had\n" +
			"happened.\n\n" +
			"The command reads each KEY three times, and refuses one that can be read, one that the head does not name, and one of which the store\n" +
			"does not say what it is. The head moves by If-Match: where a reconciler, or another operator, has moved it meanwhile, nothing is\n" +
			"changed, and the command is run again.\n\n" +
			"Needs credentials that may write journal/v1/head.json and journal/v1/folded/, as those of a reconciler.\n\n" + bucketHelp,
		Args: cobra.MinimumNArgs(2),
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only print what would be dropped")
	cmd.Flags().BoolVar(&yes, "yes", false, "drop it: its bytes are lost for good")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dry == yes {
			return usageError("say either --dry-run or --yes")
		}
		store, err := openBucket(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		v, err := dropFiles(cmd, store, args[1:], dry)
		switch {
		case errors.Is(err, objstore.ErrPreconditionFailed):
			return &cli.ExitError{Code: cli.ExitFailed, Err: fmt.Errorf("the head of the journal has moved meanwhile and nothing was changed; run it again: %w", err)}
		case err != nil:
			return reached(err)
		}
		t := table{header: []string{"KEY", "ENTRIES", "BYTES", "FROM", "TO"}}
		for _, f := range v.Files {
			t.rows = append(t.rows, []string{f.Key, fmt.Sprint(f.Entries), fmt.Sprint(f.Bytes), f.From, f.To})
		}
		if err := out.write(cmd.OutOrStdout(), v, t); err != nil || out.String() != "table" {
			return err
		}
		if dry {
			fmt.Fprintln(cmd.ErrOrStderr(), "Nothing was changed. With --yes these would be dropped.")
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "Dropped with move %d of the head. Answers say JOURNAL_INCOMPLETE until a full audit has ended: lmctl audit list.\n", v.Head)
		}
		return nil
	}
	return cmd
}

const (
	// dropReads is how often a file is found to be lost before it is dropped, and dropPause what is waited in between: what
	// one answer says may be a network's fault.
	dropReads = 3
	dropPause = time.Second
)

func dropFiles(cmd *cobra.Command, store objstore.Store, keys []string, dry bool) (dropView, error) {
	ctx := cmd.Context()
	v := dropView{DryRun: dry, Files: []droppedView{}}
	var found []journal.Span
	for n := range dropReads {
		var err error
		if n > 0 {
			if err = run.Sleep(ctx, dropPause); err != nil {
				return v, err
			}
		}
		if found, err = journal.FindLost(ctx, store, keys); err != nil {
			return v, err
		}
	}
	if !dry {
		d, err := journal.Drop(ctx, store, rand.Reader, keys)
		if err != nil {
			return v, err
		}
		v.Head, found = d.Head, d.Spans
	}
	for _, x := range found {
		v.Files = append(v.Files, droppedView{x.Key, x.Entries, x.Bytes, exact(x.MinTime), exact(x.MaxTime)})
	}
	return v, nil
}
