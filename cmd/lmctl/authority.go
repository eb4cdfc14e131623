package main

import (
	"errors"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/layout"
)

func authorityCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "authority", Short: "The acceptance authority: one bucket and one prefix"}
	cmd.AddCommand(&cobra.Command{
		Use:   "show URL",
		Short: "Print the bucket's id object",
		Long:  "Prints the id object that every collector compares with its configured authority id.\n\n" + bucketHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			id, err := accept.ReadAuthority(cmd.Context(), store)
			// The store was reached and answered, so this is a finding about the bucket and no failure.
			if errors.Is(err, accept.ErrNoAuthority) {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("the bucket is no acceptance authority yet: no collector ever started on it")}
			}
			if err != nil {
				return reached(err)
			}
			return out.write(cmd.OutOrStdout(), map[string]any{"key": layout.AuthorityKey, "authority_id": id},
				table{header: []string{"KEY", "AUTHORITY"}, rows: [][]string{{layout.AuthorityKey, id}}})
		},
	})
	return cmd
}
