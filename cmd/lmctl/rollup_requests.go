package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/rollups/repair"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

type requestView struct {
	Hour       string   `json:"hour"`
	Shard      string   `json:"shard"`
	Generation uint64   `json:"generation"`
	Batches    int      `json:"batches"`
	Removed    int      `json:"frames_removed"`
	Uncounted  int      `json:"not_counted,omitempty"`
	Source     string   `json:"inputs_from"`
	Damaged    []string `json:"damaged"`
	Aborted    []uint64 `json:"aborted_generations"`
	State      string   `json:"state"`
}

// place of an hour that is to be rebuilt.
type place struct {
	hour  timegrid.Hour
	shard shard.ID
}

// request makes or counts repair requests. One that can't be made is a finding, and the others are made.
func request(ctx context.Context, r *repair.Repairer, places []place, reason string, dry bool, progress io.Writer) ([]requestView, error) {
	views, refused := []requestView{}, 0
	for _, p := range places {
		o, err := r.Request(ctx, p.hour, p.shard, reason, dry)
		v := requestView{Hour: p.hour.String(), Shard: p.shard.String(), Generation: o.Generation, Batches: o.Batches, Removed: o.Removed, Uncounted: o.Uncounted, Source: o.Source,
			Damaged: append([]string{}, o.Damaged...), Aborted: append([]uint64{}, o.Aborted...), State: "requested"}
		switch {
		case errors.Is(err, repair.ErrNothing): // never, or expired
			v.State = "nothing published"
		case errors.Is(err, repair.ErrInWork): // the operator makes the request again
			v.State = "in work"
			refused++
			fmt.Fprintln(progress, err)
		case errors.Is(err, repair.ErrLost), errors.Is(err, repair.ErrUnknown):
			v.State = "impossible"
			refused++
			fmt.Fprintln(progress, err)
		case err != nil:
			return views, err
		case dry:
			v.State = "to be requested"
		case o.Pending:
			v.State = "pending"
		}
		if v.Uncounted > 0 {
			fmt.Fprintf(progress, "hour %s of shard %s: %d batches of its blocks are left out, because the journal of this region does not count them\n", v.Hour, v.Shard, v.Uncounted)
		}
		views = append(views, v)
	}
	if refused > 0 {
		return views, &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d of %d hours can't be rebuilt, or not now", refused, len(places))}
	}
	return views, nil
}

func requestTable(views []requestView) table {
	t := table{header: []string{"HOUR", "SHARD", "GENERATION", "BATCHES", "FRAMES REMOVED", "INPUTS FROM", "DAMAGED RECORDS", "STATE"}}
	for _, v := range views {
		t.rows = append(t.rows, []string{v.Hour, v.Shard, fmt.Sprint(v.Generation), fmt.Sprint(v.Batches), fmt.Sprint(v.Removed), orDash(v.Source),
			fmt.Sprint(len(v.Damaged)), v.State})
	}
	return t
}

// requests prints what was requested, also when some could not be.
func (f *format) requests(w io.Writer, views []requestView, err error) error {
	if werr := f.write(w, views, requestTable(views)); werr != nil {
		return werr
	}
	return reached(err)
}

func dryOrYes(cmd *cobra.Command) (dry, yes *bool) {
	return cmd.Flags().Bool("dry-run", false, "only show what would be requested"), cmd.Flags().Bool("yes", false, "make the requests")
}

func rollupRepair(out *format) *cobra.Command {
	hours := &rollupHours{}
	var hour string
	var heads bool
	cmd := &cobra.Command{
		Use:   "repair URL (--dry-run | --yes)",
		Short: "Request that damaged hours are rebuilt",
		Long: "Checks as verify does, and requests that every shard's hour with a finding is rebuilt; with --hour and --shard\n" +
			"that hour alone, whatever it is like. The inputs are fixed in the next generation's plan: those of the\n" +
			"plans, blocks and identity manifests that can be read. The shard's owner makes the generation from frames within\n" +
			"about a minute, at all resolutions, and deletes the request (lmctl rollup requests). Nothing is\n" +
			"deleted: what is damaged is superseded, and stays. Exits 3 when an hour can't be rebuilt: its frames were\n" +
			"removed and its raw rows are damaged.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
	}
	hours.flags(cmd)
	cmd.Flags().StringVar(&hour, "hour", "", "this hour only, by its start; needs --shard")
	cmd.Flags().BoolVar(&heads, "heads", false, "read no object to find what is damaged")
	dry, yes := dryOrYes(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// The requests cost much work of others, so the command has no default for them.
		if *dry == *yes {
			return usageError("say either --dry-run or --yes")
		}
		o, err := hours.options()
		if err != nil {
			return err
		}
		if hour != "" && (o.Shard == nil || hours.from != "" || hours.to != "") {
			return usageError("--hour needs --shard, and no --from or --to")
		}
		ctx := cmd.Context()
		r, err := openRepairer(ctx, args[0], o.Shard)
		if err != nil {
			return err
		}
		var places []place
		if hour != "" {
			h, err := parseHour(hour)
			if err != nil {
				return usageError("--hour: %w", err)
			}
			places = []place{{h, *o.Shard}}
		} else {
			o.Heads, o.Progress = heads, verifyProgress(cmd.ErrOrStderr())
			rep, err := r.Verify(ctx, o)
			if err != nil {
				return reached(err)
			}
			places = damagedPlaces(rep, cmd.ErrOrStderr())
		}
		views, err := request(ctx, r, places, "damaged", *dry, cmd.ErrOrStderr())
		return out.requests(cmd.OutOrStdout(), views, err)
	}
	return cmd
}

// damagedPlaces are the hours with findings, each once, in the order of the findings.
func damagedPlaces(rep repair.Report, progress io.Writer) []place {
	var places []place
	seen := map[place]bool{}
	for _, f := range rep.Findings {
		fmt.Fprintln(progress, f)
		// The same inputs once more would make the same rows. Its worker adds the other batch when it reads the journal again.
		if f.Problem == repair.CountedTwice {
			fmt.Fprintln(progress, "  not requested: run lmctl reprocess")
			continue
		}
		// An hour may have a finding for each resolution and object, and one request rebuilds all of it.
		if p := (place{f.Hour, f.Shard}); !seen[p] {
			seen[p] = true
			places = append(places, p)
		}
	}
	return places
}

func rollupRenew(out *format) *cobra.Command {
	hours := &rollupHours{}
	cmd := &cobra.Command{
		Use:   "renew URL --from HOUR [--to HOUR] (--dry-run | --yes)",
		Short: "Request that published hours are rebuilt from their frames, damaged or not",
		Long: "Requests that every published hour of the range is rolled up again: the next generation, of the same inputs, from\n" +
			"their frames, with every object read. It costs as much as the first time.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
	}
	hours.flags(cmd)
	dry, yes := dryOrYes(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *dry == *yes || hours.from == "" {
			return usageError("say --from, and either --dry-run or --yes")
		}
		o, err := hours.options()
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		r, err := openRepairer(ctx, args[0], o.Shard)
		if err != nil {
			return err
		}
		var places []place
		err = r.Published(ctx, o, func(h timegrid.Hour, s shard.ID) error {
			places = append(places, place{h, s})
			return nil
		})
		if err != nil {
			return reached(err)
		}
		views, err := request(ctx, r, places, "renew", *dry, cmd.ErrOrStderr())
		return out.requests(cmd.OutOrStdout(), views, err)
	}
	return cmd
}

type pendingRequest struct {
	Hour        string   `json:"hour"`
	Shard       string   `json:"shard"`
	Above       uint64   `json:"above_generation"`
	Damaged     []string `json:"damaged"`
	Reason      string   `json:"reason"`
	By          string   `json:"by"`
	RequestedAt string   `json:"requested_at"`
}

func rollupRequests(out *format) *cobra.Command {
	return &cobra.Command{
		Use:   "requests URL",
		Short: "List repair requests that are not done yet",
		Long:  "Lists hours that are to be rebuilt. Exits 3 when a request can't be read: make it again.\n\n" + bucketHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := openRepairer(cmd.Context(), args[0], nil)
			if err != nil {
				return err
			}
			bad := 0
			pending, err := r.Requests(cmd.Context(), func(key string, err error) {
				bad++
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", key, err)
			})
			if err != nil {
				return reached(err)
			}
			views, t := []pendingRequest{}, table{header: []string{"HOUR", "SHARD", "ABOVE", "REASON", "BY", "REQUESTED AT"}}
			for _, o := range pending {
				v := pendingRequest{o.Hour.String(), o.Shard.String(), o.Above, append([]string{}, o.Damaged...), o.Reason, o.By, when(o.RequestedAt)}
				views = append(views, v)
				t.rows = append(t.rows, []string{v.Hour, v.Shard, fmt.Sprint(v.Above), v.Reason, v.By, v.RequestedAt})
			}
			if err := out.write(cmd.OutOrStdout(), views, t); err != nil {
				return err
			}
			if bad > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d repair requests can't be read", bad)}
			}
			return nil
		},
	}
}
