package main

import (
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// storePlacesCommand is about places that leave.
func storePlacesCommand(out *format) *cobra.Command {
	cmd := storeDrivesCommand(out)
	cmd.Use, cmd.Short = "places", "The places of an embedded object store, as drives shows them; drain one, or give it up"
	cmd.AddCommand(storeDrainCommand(out), storeUndrainCommand(out), storeLostCommand(out))
	return cmd
}

const placesPath = "/redundancy/places"

func storeDrainCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	force := false
	cmd := a.flags(&cobra.Command{
		Use:   "drain PLACE",
		Short: "Empty a place, so that it can be taken out of the settings",
		Long: "The place gets no more files, and what it has is moved to the others while the store works; \"lmctl store places\" shows\n" +
			"how many are left. When it is \"drained\", take it out of the settings at the next start. Refused where fewer places would be left than a body\n" +
			"has files or a write needs, or less room than the place has files: --force begins all the same, and waits for other places.",
		Example: "  lmctl store places drain drive1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var l objectstore.PlaceLosses
			if err := a.ask(cmd.Context(), placesPath, objectstore.PlaceOrder{Place: args[0], Action: "drain", Force: force}, &l); err != nil {
				return err
			}
			return a.writePlaces(cmd, out)
		},
	})
	cmd.Flags().BoolVar(&force, "force", false, "also where the others cannot do without it")
	return cmd
}

// writePlaces shows what the order made of the places.
func (a *storeAddress) writePlaces(cmd *cobra.Command, out *format) error {
	s, err := a.status(cmd.Context())
	if err != nil {
		return err
	}
	return out.write(cmd.OutOrStdout(), s.Places, placesTable(s))
}

func storeUndrainCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	return a.flags(&cobra.Command{
		Use:   "undrain PLACE",
		Short: "Take a place into use again that is being emptied, or is empty",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.ask(cmd.Context(), placesPath, objectstore.PlaceOrder{Place: args[0], Action: "undrain"}, new(objectstore.PlaceLosses)); err != nil {
				return err
			}
			return a.writePlaces(cmd, out)
		},
	})
}

func storeLostCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	force, dry := false, false
	cmd := a.flags(&cobra.Command{
		Use:   "lost PLACE",
		Short: "Give up a place that will not return; exits 3 when objects are lost with it",
		Long: "Shows what cannot be read without the place, and gives it up, for good: its files are made again on others, and the\n" +
			"settings may leave it out. Refused while it answers, since it can be emptied then, and where objects are lost with it:\n" +
			"--force gives it up all the same. A drive of its name may come later (lmctl store replace).",
		Example: "  lmctl store places lost drive1 --dry-run",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var l objectstore.PlaceLosses
			if err := a.ask(cmd.Context(), "/redundancy/losses?"+url.Values{"place": {args[0]}}.Encode(), nil, &l); err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), l, lossesTable(l)); err != nil {
				return err
			}
			if !dry {
				if err := a.ask(cmd.Context(), placesPath, objectstore.PlaceOrder{Place: args[0], Action: "lost", Force: force}, &l); err != nil {
					return err
				}
			}
			if l.Bodies > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("objects cannot be read without the place")}
			}
			return nil
		},
	})
	cmd.Flags().BoolVar(&force, "force", false, "also while it answers, and where objects are lost with it")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only show what would be lost")
	return cmd
}

func lossesTable(l objectstore.PlaceLosses) table {
	t := table{header: []string{"LOST", "WHAT"}, rows: [][]string{{"files of the place", fmt.Sprint(l.Files)}, {"bodies that cannot be read without it", fmt.Sprintf("%d, %d bytes", l.Bodies, l.Bytes)}}}
	for _, o := range l.Objects {
		name := o.Bucket + "/" + o.Key
		if o.Version != "" {
			name += " version " + o.Version
		}
		t.rows = append(t.rows, []string{"object", name})
	}
	if len(l.Objects) == 0 {
		for _, id := range l.IDs {
			t.rows = append(t.rows, []string{"body", id})
		}
	}
	return t
}
