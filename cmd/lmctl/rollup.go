package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/repair"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

func rollupCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "rollup", Short: "Published sets: check, repair, make anew; their reference sets"}
	cmd.AddCommand(rollupVerify(out), rollupRepair(out), rollupRenew(out), rollupOrders(out), rollupCoverage(out), rollupReferences(out))
	return cmd
}

func usageError(format string, args ...any) error {
	return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf(format, args...)}
}

// rollupHours is which hours a command is about.
type rollupHours struct {
	from, to string
	shard    int
}

func (r *rollupHours) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.from, "from", "", "first hour of samples: 2006-01-02T15, a date, or a time (UTC); default the first there is")
	cmd.Flags().StringVar(&r.to, "to", "", "last hour of samples, included; default the last there is")
	cmd.Flags().IntVar(&r.shard, "shard", -1, "only this shard")
}

// parseHour names an hour by its start.
func parseHour(s string) (window.Hour, error) {
	t, err := time.Parse("2006-01-02T15", s)
	if err != nil {
		if t, err = parseTime(s); err != nil {
			return 0, fmt.Errorf("%q is no hour like 2006-01-02T15", s)
		}
	}
	if !t.Equal(t.Truncate(time.Hour)) {
		return 0, fmt.Errorf("%q is not the start of an hour", s)
	}
	return window.HourStarting(t), nil
}

// options of a check. The last hour that a time can lie in bounds both sides.
func (r *rollupHours) options() (repair.Options, error) {
	o := repair.Options{From: window.HourOfNS(math.MinInt64), To: window.HourOfNS(math.MaxInt64)}
	var err error
	if r.from != "" {
		if o.From, err = parseHour(r.from); err != nil {
			return o, usageError("--from: %w", err)
		}
	}
	if r.to != "" {
		if o.To, err = parseHour(r.to); err != nil {
			return o, usageError("--to: %w", err)
		}
	}
	if o.To < o.From {
		return o, usageError("--to is before --from")
	}
	if r.shard >= shard.Max {
		return o, usageError("--shard %d: at most %d", r.shard, shard.Max-1)
	}
	if r.shard >= 0 {
		id := shard.ID(r.shard)
		o.Shard = &id
	}
	return o, nil
}

// openRepairer opens a bucket that has rollups.
func openRepairer(ctx context.Context, url string) (*repair.Repairer, error) {
	store, err := openBucket(ctx, url)
	if err != nil {
		return nil, err
	}
	return newRepairer(ctx, store, time.Now)
}

func newRepairer(ctx context.Context, store objstore.Store, now func() time.Time) (*repair.Repairer, error) {
	authority, shards, err := rollupFacts(ctx, store)
	if err != nil {
		return nil, err
	}
	return repair.New(repair.Config{Store: store, AuthorityID: authority, Shards: shards, By: "lmctl", Now: now,
		Scan: func(ctx context.Context, h window.Hour, _ shard.ID, fn func(accept.Manifest) error) error {
			r := &reprocess{store: store, shards: shards, page: reprocessPage, now: now}
			o := reprocessOrder{From: h.Start().Add(-scanBefore), To: now().Add(time.Hour)}
			return r.walk(ctx, o, reprocessProgress{}, func(_ reprocessProgress, ms []accept.Manifest) error {
				for _, m := range ms {
					if err := fn(m); err != nil {
						return err
					}
				}
				return nil
			})
		}})
}

// scanBefore an hour's start batches with samples in it may have been accepted: an agent's
// clock is that far ahead at most, where collectors have their default limits.
const scanBefore = 48 * time.Hour

// rollupFacts reads the authority's id and its number of shards.
func rollupFacts(ctx context.Context, store objstore.Reader) (string, uint32, error) {
	body, _, err := store.Get(ctx, layout.AuthorityKey, objstore.GetOptions{Limit: accept.MaxRecordBytes})
	if errors.Is(err, objstore.ErrNotFound) {
		return "", 0, &cli.ExitError{Code: cli.ExitFailed, Err: errors.New("the bucket is no acceptance authority")}
	}
	if err != nil {
		return "", 0, reached(err)
	}
	a, err := accept.ParseAuthorityRecord(body)
	if err != nil {
		return "", 0, err
	}
	shards, err := intake.ReadShards(ctx, store)
	if errors.Is(err, objstore.ErrNotFound) {
		return "", 0, &cli.ExitError{Code: cli.ExitFailed, Err: errors.New("the bucket has no rollups: their number of shards is not fixed")}
	}
	return a.AuthorityID, shards, reached(err)
}

type rollupFinding struct {
	Problem string `json:"problem"`
	Hour    string `json:"hour"`
	Shard   string `json:"shard"`
	Window  string `json:"window"`
	Key     string `json:"key"`
	Detail  string `json:"detail"`
}

type verifyView struct {
	Hours      int             `json:"hours"`
	Sets       int             `json:"sets"`
	Plans      int             `json:"plans"`
	Objects    int             `json:"objects"`
	Bytes      uint64          `json:"bytes"`
	Superseded int             `json:"superseded_unreadable"`
	Found      uint64          `json:"found"`
	Findings   []rollupFinding `json:"findings"`
}

func viewVerify(r repair.Report) (verifyView, table) {
	v := verifyView{r.Hours, r.Sets, r.Plans, r.Objects, r.Bytes, r.Superseded, r.Found, []rollupFinding{}}
	t := table{header: []string{"WHAT", "COUNT"}, rows: [][]string{
		{"hours", fmt.Sprint(r.Hours)}, {"sets that count", fmt.Sprint(r.Sets)}, {"plans", fmt.Sprint(r.Plans)},
		{"chunks and indexes", fmt.Sprint(r.Objects)}, {"bytes", fmt.Sprint(r.Bytes)},
		{"superseded records that can't be read", fmt.Sprint(r.Superseded)}, {"findings", fmt.Sprint(r.Found)},
	}}
	for _, f := range r.Findings {
		one := rollupFinding{string(f.Problem), f.Hour.String(), f.Shard.String(), f.Window.String(), f.Key, f.Detail}
		v.Findings = append(v.Findings, one)
		t.rows = append(t.rows, []string{one.Problem, fmt.Sprintf("%s shard %s %s %s: %s", one.Hour, one.Shard, one.Window, one.Key, one.Detail)})
	}
	return v, t
}

func rollupVerify(out *format) *cobra.Command {
	hours := &rollupHours{}
	var heads bool
	cmd := &cobra.Command{
		Use:   "verify URL",
		Short: "Check published sets: records, plans, chunks, indexes",
		Long: "Reads, of every shard's hour and window, the records down to the set that counts, its plan and every byte of\n" +
			"its chunks and indexes (of a compaction where they are in one), and the plans of generations in work. Exits 3\n" +
			"when something can't be read or is not what the record says; lmctl rollup repair mends it.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o, err := hours.options()
			if err != nil {
				return err
			}
			r, err := openRepairer(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			o.Heads, o.Progress = heads, verifyProgress(cmd.ErrOrStderr())
			rep, err := r.Verify(cmd.Context(), o)
			if err != nil {
				return reached(err)
			}
			v, t := viewVerify(rep)
			if err := out.write(cmd.OutOrStdout(), v, t); err != nil {
				return err
			}
			if rep.Found > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("published sets are damaged")}
			}
			return nil
		},
	}
	hours.flags(cmd)
	cmd.Flags().BoolVar(&heads, "heads", false, "compare sizes and the store's checksums, and read no object: misses what rotted since it was written")
	return cmd
}

// verifyProgress says something about every hundredth hour.
func verifyProgress(w io.Writer) func(window.Hour, repair.Report) {
	return func(h window.Hour, r repair.Report) {
		if r.Hours%100 == 0 {
			fmt.Fprintf(w, "%s: %d hours, %d objects, %d findings so far\n", h, r.Hours, r.Objects, r.Found)
		}
	}
}

type orderView struct {
	Hour       string   `json:"hour"`
	Shard      string   `json:"shard"`
	Generation uint64   `json:"generation"`
	Batches    int      `json:"batches"`
	Removed    int      `json:"frames_removed"`
	Source     string   `json:"inputs_from"`
	Damaged    []string `json:"damaged"`
	Aborted    []uint64 `json:"aborted_generations"`
	State      string   `json:"state"`
}

// place of an hour that is ordered.
type place struct {
	hour  window.Hour
	shard shard.ID
}

// order gives or counts orders; one that can't be given is a finding, and the others go on.
func order(ctx context.Context, r *repair.Repairer, places []place, reason string, dry bool, progress io.Writer) ([]orderView, error) {
	views, refused := []orderView{}, 0
	for _, p := range places {
		o, err := r.Order(ctx, p.hour, p.shard, reason, dry)
		v := orderView{Hour: p.hour.String(), Shard: p.shard.String(), Generation: o.Generation, Batches: o.Batches, Removed: o.Removed, Source: o.Source,
			Damaged: append([]string{}, o.Damaged...), Aborted: append([]uint64{}, o.Aborted...), State: "ordered"}
		switch {
		case errors.Is(err, repair.ErrNothing): // never, or expired
			v.State = "nothing published"
		case errors.Is(err, repair.ErrLost), errors.Is(err, repair.ErrUnknown):
			v.State = "impossible"
			refused++
			fmt.Fprintln(progress, err)
		case err != nil:
			return views, err
		case dry:
			v.State = "to be ordered"
		case o.Pending:
			v.State = "pending"
		}
		views = append(views, v)
	}
	if refused > 0 {
		return views, &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d of %d hours can't be made anew", refused, len(places))}
	}
	return views, nil
}

func orderTable(views []orderView) table {
	t := table{header: []string{"HOUR", "SHARD", "GENERATION", "BATCHES", "FRAMES REMOVED", "INPUTS FROM", "DAMAGED RECORDS", "STATE"}}
	for _, v := range views {
		t.rows = append(t.rows, []string{v.Hour, v.Shard, fmt.Sprint(v.Generation), fmt.Sprint(v.Batches), fmt.Sprint(v.Removed), orDash(v.Source),
			fmt.Sprint(len(v.Damaged)), v.State})
	}
	return t
}

// write prints what was ordered, also when some could not be.
func (f *format) orders(w io.Writer, views []orderView, err error) error {
	if werr := f.write(w, views, orderTable(views)); werr != nil {
		return werr
	}
	return reached(err)
}

func dryOrYes(cmd *cobra.Command) (dry, yes *bool) {
	return cmd.Flags().Bool("dry-run", false, "only tell what would be ordered"), cmd.Flags().Bool("yes", false, "give the orders")
}

func rollupRepair(out *format) *cobra.Command {
	hours := &rollupHours{}
	var hour string
	var heads bool
	cmd := &cobra.Command{
		Use:   "repair URL (--dry-run | --yes)",
		Short: "Order damaged hours to be made anew",
		Long: "Checks as verify does, and orders every shard's hour with a finding to be made anew; with --hour and --shard\n" +
			"that hour alone, whatever it is like. The inputs are fixed in the next generation's plan: those of the\n" +
			"plans, sets and identity manifests that can be read. The shard's owner makes the generation from frames within\n" +
			"about a minute of its next look, in all windows, and deletes the order (lmctl rollup orders). Nothing is\n" +
			"deleted: what is damaged is superseded, and stays. Exits 3 when an hour can't be made anew: its frames were\n" +
			"removed and its raw rows are damaged.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
	}
	hours.flags(cmd)
	cmd.Flags().StringVar(&hour, "hour", "", "this hour only, by its start; needs --shard")
	cmd.Flags().BoolVar(&heads, "heads", false, "read no object to find what is damaged")
	dry, yes := dryOrYes(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
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
		r, err := openRepairer(ctx, args[0])
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
		views, err := order(ctx, r, places, "damaged", *dry, cmd.ErrOrStderr())
		return out.orders(cmd.OutOrStdout(), views, err)
	}
	return cmd
}

// damagedPlaces are the hours with findings, each once, in the order of the findings.
func damagedPlaces(rep repair.Report, progress io.Writer) []place {
	var places []place
	seen := map[place]bool{}
	for _, f := range rep.Findings {
		fmt.Fprintln(progress, f)
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
		Short: "Order published hours to be made anew from their frames, damaged or not",
		Long: "Orders every published hour of the range to be rolled up again: the next generation, of the same inputs, from\n" +
			"their frames, with every object looked at. It costs as much as the first time.\n\n" + bucketHelp,
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
		r, err := openRepairer(ctx, args[0])
		if err != nil {
			return err
		}
		var places []place
		err = r.Published(ctx, o, func(h window.Hour, s shard.ID) error {
			places = append(places, place{h, s})
			return nil
		})
		if err != nil {
			return reached(err)
		}
		views, err := order(ctx, r, places, "renew", *dry, cmd.ErrOrStderr())
		return out.orders(cmd.OutOrStdout(), views, err)
	}
	return cmd
}

type pendingOrder struct {
	Hour      string   `json:"hour"`
	Shard     string   `json:"shard"`
	Above     uint64   `json:"above_generation"`
	Damaged   []string `json:"damaged"`
	Reason    string   `json:"reason"`
	By        string   `json:"by"`
	OrderedAt string   `json:"ordered_at"`
}

func rollupOrders(out *format) *cobra.Command {
	return &cobra.Command{
		Use:   "orders URL",
		Short: "List orders that are not done yet",
		Long:  "Lists hours that are ordered to be made anew. Exits 3 when an order can't be read: give it again.\n\n" + bucketHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := openRepairer(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			bad := 0
			orders, err := r.Orders(cmd.Context(), func(key string, err error) {
				bad++
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", key, err)
			})
			if err != nil {
				return reached(err)
			}
			views, t := []pendingOrder{}, table{header: []string{"HOUR", "SHARD", "ABOVE", "REASON", "BY", "ORDERED AT"}}
			for _, o := range orders {
				v := pendingOrder{o.Hour.String(), o.Shard.String(), o.Above, append([]string{}, o.Damaged...), o.Reason, o.By, when(o.OrderedAt)}
				views = append(views, v)
				t.rows = append(t.rows, []string{v.Hour, v.Shard, fmt.Sprint(v.Above), v.Reason, v.By, v.OrderedAt})
			}
			if err := out.write(cmd.OutOrStdout(), views, t); err != nil {
				return err
			}
			if bad > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d orders can't be read", bad)}
			}
			return nil
		},
	}
}
