package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

type rollupFinding struct {
	Problem    string `json:"problem"`
	Hour       string `json:"hour"`
	Shard      string `json:"shard"`
	Resolution string `json:"resolution"`
	Key        string `json:"key"`
	Detail     string `json:"detail"`
}

type verifyView struct {
	Hours      int             `json:"hours"`
	Blocks     int             `json:"blocks"`
	Plans      int             `json:"plans"`
	Deltas     int             `json:"deltas"`
	Batches    uint64          `json:"batches"`
	Overlaps   uint64          `json:"overlaps"`
	Objects    int             `json:"objects"`
	Bytes      uint64          `json:"bytes"`
	Superseded int             `json:"superseded_unreadable"`
	Found      uint64          `json:"found"`
	Findings   []rollupFinding `json:"findings"`
}

func viewVerify(r repair.Report) (verifyView, table) {
	v := verifyView{r.Hours, r.Blocks, r.Plans, r.Deltas, r.Batches, r.Overlaps, r.Objects, r.Bytes, r.Superseded, r.Found, []rollupFinding{}}
	t := table{header: []string{"WHAT", "COUNT"}, rows: [][]string{
		{"hours", fmt.Sprint(r.Hours)}, {"blocks that count", fmt.Sprint(r.Blocks)}, {"plans", fmt.Sprint(r.Plans)},
		{"deltas", fmt.Sprint(r.Deltas)},
		{"accepted batches", fmt.Sprint(r.Batches)}, {"pairs that share numbers", fmt.Sprint(r.Overlaps)},
		{"chunks and indexes", fmt.Sprint(r.Objects)}, {"bytes", fmt.Sprint(r.Bytes)},
		{"superseded records that can't be read", fmt.Sprint(r.Superseded)}, {"findings", fmt.Sprint(r.Found)},
	}}
	for _, f := range r.Findings {
		one := rollupFinding{string(f.Problem), f.Hour.String(), f.Shard.String(), f.Resolution.String(), f.Key, f.Detail}
		v.Findings = append(v.Findings, one)
		t.rows = append(t.rows, []string{one.Problem, fmt.Sprintf("%s shard %s %s %s: %s", one.Hour, one.Shard, one.Resolution, one.Key, one.Detail)})
	}
	return v, t
}

func rollupVerify(out *format) *cobra.Command {
	hours := &rollupHours{}
	var heads bool
	cmd := &cobra.Command{
		Use:   "verify URL",
		Short: "Check blocks: records, plans, chunks, indexes",
		Long: "Reads, of every shard's hour and resolution, the records down to the block that counts, its plan and every byte of\n" +
			"its chunks and indexes (of a compaction where they are in one), the plans of generations in work, and deltas. Then it\n" +
			"lists the accepted batches: those of a boot that share sequence numbers must be inputs of the same hours, however\n" +
			"far apart, or a record counts twice (COUNTED_TWICE: lmctl reprocess mends it). Exits 3 when something can't be read\n" +
			"or is not what the record says; lmctl rollup repair mends it.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := hours.options()
			if err != nil {
				return err
			}
			r, err := openRepairer(cmd.Context(), args[0], o.Shard)
			if err != nil {
				return err
			}
			o.Heads, o.Progress = heads, verifyProgress(cmd.ErrOrStderr())
			rep, err := r.Verify(cmd.Context(), o)
			if err != nil {
				return reached(err)
			}
			v, t := viewVerify(rep)
			// The report is written before the finding is returned, since the error says only that there
			// are some.
			if err := out.write(cmd.OutOrStdout(), v, t); err != nil {
				return err
			}
			if rep.Found > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("blocks are damaged")}
			}
			return nil
		},
	}
	hours.flags(cmd)
	cmd.Flags().BoolVar(&heads, "heads", false, "compare sizes and the store's checksums, and read no object: misses what rotted since it was written")
	return cmd
}

// verifyProgress says something about every hundredth hour.
func verifyProgress(w io.Writer) func(timegrid.Hour, repair.Report) {
	return func(h timegrid.Hour, r repair.Report) {
		if r.Hours%100 == 0 {
			fmt.Fprintf(w, "%s: %d hours, %d objects, %d findings so far\n", h, r.Hours, r.Objects, r.Found)
		}
	}
}
