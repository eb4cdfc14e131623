package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/qualify"
)

func storeCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "store", Short: "The object store"}
	var strict bool
	q := &cobra.Command{
		Use:   "qualify URL",
		Short: "Probe a store for the semantics that acceptance relies on",
		Long: "Probes conditional creates, their races, read and list after write, If-Match and checksum refusal under\n" +
			"probe/v1/. With --strict also that the bucket's policy denies unconditional writes and deletes under\n" +
			"accepted/v1/. Exits 1 when a check fails.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			store, err := openBucket(ctx, args[0])
			if err != nil {
				return err
			}
			report, err := qualify.Run(ctx, store, qualify.Options{RunID: runID(), Strict: strict, Now: time.Now})
			if werr := out.write(cmd.OutOrStdout(), report, qualifyTable(report)); werr != nil {
				return werr
			}
			if err != nil {
				err = reached(err)
				if _, ok := err.(*cli.ExitError); !ok {
					err = &cli.ExitError{Code: cli.ExitFailed, Err: err}
				}
			}
			return err
		},
	}
	q.Flags().BoolVar(&strict, "strict", false, "probe the bucket's policy too")
	cmd.AddCommand(q)
	return cmd
}

// runID keeps the keys of two probes apart.
func runID() string {
	return fmt.Sprintf("lmctl-%d-%d", time.Now().UnixNano(), os.Getpid())
}

func qualifyTable(r qualify.Report) table {
	t := table{header: []string{"CHECK", "RESULT", "TOOK", "DETAIL"}}
	for _, row := range r.Rows {
		t.rows = append(t.rows, []string{row.Check, string(row.Status), row.Took.Round(10 * time.Microsecond).String(), row.Detail})
	}
	return t
}
