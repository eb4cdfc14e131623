package main

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

func storeCheckCommand(out *format) *cobra.Command {
	file := new(string)
	cmd := &cobra.Command{
		Use:   "check DIR",
		Short: "Read everything in the directory of an embedded object store that is not running",
		Long: "Reads every record, object and footer, verifies every checksum, and names what is damaged and which objects\n" +
			"are lost. Nothing is changed. The index is read into memory. Exits 3 on findings.",
		Example: "  lmctl store check /var/lib/lightmetrics/objects",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := storeSettings(args[0], *file)
			if err != nil {
				return err
			}
			v, err := objectstore.Check(cmd.Context(), cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			// JSON has [] and not null, so that programs need no case for it.
			if v.Damages == nil {
				v.Damages = v.Damages[:0:0]
			}
			if err := out.write(cmd.OutOrStdout(), v, verifiedTable(v)); err != nil {
				return err
			}
			if len(v.Damages)+len(v.Lost) > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("the store is damaged; lmctl store repair takes the damage out of it")}
			}
			return nil
		},
	}
	settingsFlag(cmd, file)
	return cmd
}

func storeRepairCommand(out *format) *cobra.Command {
	file := new(string)
	cmd := &cobra.Command{
		Use:   "repair DIR...",
		Short: "Move what is damaged out of an embedded object store that is not running",
		Long: "Copies what survives of damaged files, moves these to DIR/quarantine, and names the objects that are lost.\n" +
			"No byte is deleted. Lost objects stay in listings, and reading them is an error, until they are written or\n" +
			"deleted. Unknown keys of lost writes count as absent from then on: compare the report with what the\n" +
			"clients have. Exits 3 when something is lost. Give all directories of a store on several drives.",
		Example: "  lmctl store repair /var/lib/lightmetrics/objects",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cfg, err := storeSettings(args[0], *file)
			if err != nil {
				return err
			}
			if len(args) > 1 {
				cfg.Mirrors = args[1:]
			}
			r, err := objectstore.Repair(cmd.Context(), cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			t := verifiedTable(r.Before)
			t.rows = append(t.rows, []string{"records put right", fmt.Sprint(r.Salvaged)})
			for _, f := range r.Files {
				t.rows = append(t.rows, []string{"quarantined", f})
			}
			if err := out.write(cmd.OutOrStdout(), r, t); err != nil {
				return err
			}
			// Uncertain: damaged records may have held writes whose keys nobody knows, so "nothing is
			// lost" cannot be said.
			if len(r.Lost) > 0 || r.Before.Uncertain {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("the store is whole again, and something was lost")}
			}
			return nil
		},
	}
	settingsFlag(cmd, file)
	return cmd
}

// settingsFlag names the settings of a store whose large bodies are on places.
func settingsFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVar(file, "config", "", "settings file of the store, for the places of its large bodies")
}

// storeSettings gives the settings of a store: those of a file, or none but the directory.
func storeSettings(dir, file string) (objectstore.Config, error) {
	cfg := objectstore.DefaultConfig()
	if file != "" {
		if err := config.Load(pflag.NewFlagSet("objectstore", pflag.ContinueOnError), file, "objectstore", &cfg, config.Environ()); err != nil {
			return cfg, err
		}
	}
	cfg.Dir = dir
	return cfg, nil
}

func storeReplaceCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "replace DIR... PLACE",
		Short: "Say that the drive of a place of an embedded object store was replaced by a blank one",
		Long: "A place that had files and is blank is not used: its drive may only not be mounted. This says that it was\n" +
			"replaced. The store must not be running; its next start uses the new drive, and the old one must be emptied\n" +
			"before it is used again. Give all directories of a store on several drives, and the place last.",
		Example: "  lmctl store replace /var/lib/lightmetrics/objects drive2",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			dirs, place := args[:len(args)-1], args[len(args)-1]
			if err := objectstore.ReplacePlace(place, dirs...); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "the next start uses the new drive of place %s\n", place)
			return err
		},
	}
}

func verifiedTable(v objectstore.Verified) table {
	t := table{header: []string{"WHAT", ""}, rows: [][]string{
		{"objects", fmt.Sprint(v.Objects)}, {"object bytes", fmt.Sprint(v.ObjectBytes)},
		{"segments", fmt.Sprint(v.Segments)}, {"records", fmt.Sprint(v.Records)},
		{"damaged places", fmt.Sprint(len(v.Damages))}, {"lost objects", fmt.Sprint(len(v.Lost))},
	}}
	for _, d := range v.Damages {
		text := fmt.Sprintf("%s at byte %d: %s", d.File, d.Offset, d.Reason)
		if d.Last > 0 {
			text += fmt.Sprintf("; writes %d to %d are lost, their keys are not known", d.First, d.Last)
		}
		t.rows = append(t.rows, []string{"damaged", text})
	}
	for _, l := range v.Lost {
		name := l.Bucket + "/" + l.Key
		if l.Version != "" {
			name += "?versionId=" + l.Version
		}
		t.rows = append(t.rows, []string{"lost", name + ": " + l.Reason})
	}
	return t
}
