// Command lmctl is the operator's command line. Data goes to stdout, progress to
// stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 findings, 4 unreachable.
package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/telemetry"
)

func main() {
	var out format
	root := &cobra.Command{
		Use:           "lmctl",
		Short:         "Operate Lightmetrics",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().VarP(&out, "output", "o", "output: table, json or yaml")
	root.AddCommand(
		storeCommand(&out),
		fsckCommand(&out),
		frameCommand(&out),
		agentsCommand(&out),
		agentCommand(&out),
		conflictsCommand(&out),
		authorityCommand(&out),
		shardsCommand(&out),
		jobsCommand(&out),
		reprocessCommand(&out),
		retentionCommand(&out),
		rollupCommand(&out),
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), telemetry.Version()) }},
	)
	cli.Main(root)
}
