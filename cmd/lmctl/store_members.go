package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

func storeMembersCommand(out *format) *cobra.Command {
	var goOn bool
	cmd := &cobra.Command{
		Use:   "members DIR... [--go-on]",
		Short: "Show what the drives of an embedded object store that is not running know of each other",
		Long: "Reads the record that each drive has of the store's membership, and says which of them a start would open from.\n" +
			"Nothing is changed. Exits 1 when a start would be refused.\n" +
			"With --go-on the drives that were given are the whole store from then on, although too few of those are there that\n" +
			"were in sync. Writes that only the missing ones have are given up, for good: a missing drive that returns is\n" +
			"overwritten. Use it when they will not return.",
		Example: "  lmctl store members /disk1/objects /disk2/objects",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if goOn {
				if err := objectstore.GoOn(slog.New(slog.NewTextHandler(os.Stderr, nil)), args...); err != nil {
					return err
				}
			}
			list, err := objectstore.Members(args...)
			if werr := out.write(cmd.OutOrStdout(), list, membersTable(list)); werr != nil {
				return werr
			}
			if err != nil {
				return &cli.ExitError{Code: cli.ExitFailed, Err: errors.Join(errors.New("a start would be refused"), err)}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&goOn, "go-on", false, "make these drives the whole store, and give up what only the missing ones have")
	return cmd
}

func membersTable(list []objectstore.Member) table {
	t := table{header: []string{"DIRECTORY", "DRIVE", "RECORD", "DRIVES IN SYNC", "STATE"}}
	for _, m := range list {
		t.rows = append(t.rows, []string{m.Name, string(m.Record.Drive), m.Record.At.String(), fmt.Sprint(len(m.Record.InSync)), m.Opinion})
	}
	return t
}
