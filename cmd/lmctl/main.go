// Command lmctl is the operator's command line. Data goes to stdout, progress to
// stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 findings, 4 unreachable.
package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
)

func main() {
	var out format
	root := &cobra.Command{
		Use:           "lmctl",
		Short:         "Operate Lightmetrics",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       telemetry.Version(),
		Long: "Operate Lightmetrics. Exit status: 0 ok, 1 failed, 2 wrong usage, 3 something was found that needs a person, 4 not reached.\n" +
			"docs/guide/lmctl.md has addresses, contexts and examples.",
		Example: "  lmctl context add prod --query grpcs://query.example:4761 --coordinator grpcs://coordinator.example:4781\n" +
			"  lmctl agents\n  lmctl shards list -o json\n  lmctl fsck s3://bucket/prefix/",
	}
	root.PersistentFlags().VarP(&out, "output", "o", "output: table, json or yaml")
	root.AddCommand(
		storeCommand(&out),
		fsckCommand(&out),
		frameCommand(&out),
		journalCommand(&out),
		auditCommand(&out),
		evaluateCommand(&out),
		agentsCommand(&out),
		agentCommand(&out),
		conflictsCommand(&out),
		repairCommand(&out),
		authorityCommand(&out),
		bucketPolicyCommand(),
		shardsCommand(&out),
		regionsCommand(&out),
		identityCommand(&out),
		jobsCommand(&out),
		reprocessCommand(&out),
		gcCommand(&out), retentionCommand(&out),
		rollupCommand(&out),
		contextCommand(&out),
		&cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), telemetry.Version()) }},
	)
	cli.Main(root)
}
