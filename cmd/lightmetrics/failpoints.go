package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// failpoints lists what LIGHTMETRICS_FAILPOINTS can arm.
func failpoints() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "failpoints", Short: "List the named points at which tests kill, pause or fail a process", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return writePoints(cmd.OutOrStdout(), all) },
	}
	cmd.Flags().BoolVar(&all, "all", false, "also those that a mode other than the default, damage, or a full disk leads to")
	return cmd
}

func writePoints(w io.Writer, all bool) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, p := range failpoint.Points() {
		if p.Test != "" && !all {
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\n", p.Name, p.When)
	}
	return tw.Flush()
}
