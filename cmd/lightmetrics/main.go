// Command lightmetrics is one binary with everything: each service and the agent
// as a sub-command, and the demo.
package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/cmd/lightmetrics/internal/all"
	"lightmetrics.dev/lightmetrics/cmd/lightmetrics/internal/demo"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/coordinator"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/query"
	"lightmetrics.dev/lightmetrics/services/reconciler"
	"lightmetrics.dev/lightmetrics/services/rollup"
)

func main() { cli.Main(root()) }

func root() *cobra.Command {
	root := &cobra.Command{
		Use:           "lightmetrics",
		Short:         "Metric batches into object storage, accepted once, and back",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(
		demo.Command(),
		all.Command(),
		objectstore.Command(),
		ingest.Command(),
		reconciler.Command(),
		query.Command(),
		coordinator.Command(),
		rollup.Command(),
		agentCommand(),
		failpoints(),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), telemetry.Version()) },
		},
	)
	return root
}
