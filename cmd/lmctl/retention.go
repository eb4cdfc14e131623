package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// youngestFrames that an operator may remove: live state and late batches need them.
const youngestFrames = 24 * time.Hour

// frameStore is what removing frames and finding the authority need.
type frameStore = compact.FrameStore

func retentionCommand(out *format) *cobra.Command {
	var frames, dry, yes bool
	var before string
	cmd := &cobra.Command{
		Use:   "retention URL --raw-frames --before TIME (--dry-run | --yes)",
		Short: "Remove raw frames that raw blocks cover",
		Long: "Blocks, and raw frames with retention.raw_frames, expire by the rollup workers' settings. This removes\n" +
			"raw frames once: those whose samples all lie before TIME, if committed blocks cover them in every hour, and no\n" +
			"late batch, repair request, agent set aside, repair record or conflict needs them. Their generations are condemned\n" +
			"for their hour (gc/v1/condemned/) and all of this is asked again; what is removed is written down under\n" +
			"gc/v1/log/frames/ first. A batch that is sent again meanwhile keeps a frame, which the next run removes. Identity\n" +
			"manifests stay. Afterwards these batches can't be rolled up from their frames again; checks of the bucket (fsck,\n" +
			"audits) count them as removed by retention.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, err := time.Parse(time.RFC3339, before)
			if err != nil || !frames {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("want --raw-frames and --before TIME, such as 2026-01-31T00:00:00Z")}
			}
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			rep, err := removeFrames(cmd.Context(), store, cmd.ErrOrStderr(), at, dry, yes, time.Now)
			// Kept is set as soon as the removal has begun. From then on the report is printed also with
			// an error: what was removed cannot be brought back, and the operator must see it.
			if err != nil && rep.Kept == nil {
				return reached(err)
			}
			if werr := out.write(cmd.OutOrStdout(), rep, retentionTable(rep, dry)); werr != nil {
				return werr
			}
			return reached(err)
		},
	}
	cmd.Flags().BoolVar(&frames, "raw-frames", false, "remove raw frames")
	cmd.Flags().StringVar(&before, "before", "", "the time before which all samples of a frame must lie, RFC 3339")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only count what would be removed")
	cmd.Flags().BoolVar(&yes, "yes", false, "remove; there is no way back")
	return cmd
}

func removeFrames(ctx context.Context, store frameStore, progress io.Writer, before time.Time, dry, yes bool, now func() time.Time) (compact.FrameReport, error) {
	usage := func(text string) error { return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New(text)} }
	switch {
	// No default: removing by mistake cannot be undone, and only counting by mistake would look like a
	// removal.
	case dry == yes:
		return compact.FrameReport{}, usage("say either --dry-run or --yes")
	case before.After(now().Add(-youngestFrames)):
		return compact.FrameReport{}, usage(fmt.Sprintf("--before must lie at least %s back: recent frames are needed by queries and for late batches", youngestFrames))
	}
	authority, err := accept.ReadAuthority(ctx, store)
	if err != nil {
		return compact.FrameReport{}, err
	}
	// Without Pending, the remover reads what waits from the bucket: this command is no worker and knows
	// nothing of their memory.
	f, err := compact.NewFrameRemover(compact.FrameConfig{
		Store: store, AuthorityID: authority.AuthorityID, By: "lmctl", Now: now,
		Progress: func(h timegrid.Hour, r compact.FrameReport) {
			fmt.Fprintf(progress, "%s: %d batches, %d bytes so far\n", h, r.Batches, r.Bytes)
		},
	})
	if err != nil {
		return compact.FrameReport{}, err
	}
	return f.Run(ctx, before, dry)
}

func retentionTable(r compact.FrameReport, dry bool) table {
	what := "removed"
	if dry {
		what = "to be removed"
	}
	t := table{header: []string{"WHAT", "COUNT"}, rows: [][]string{
		{"hours", fmt.Sprint(r.Hours)}, {"batches " + what, fmt.Sprint(r.Batches)}, {"frames " + what, fmt.Sprint(r.Frames)},
		{"bytes " + what, fmt.Sprint(r.Bytes)}, {"rewritten frames done with", fmt.Sprint(r.Rewritten)},
	}}
	for _, why := range slices.Sorted(maps.Keys(r.Kept)) {
		t.rows = append(t.rows, []string{"kept: " + why, fmt.Sprint(r.Kept[why])})
	}
	return t
}
