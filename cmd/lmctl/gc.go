package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func gcCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "gc", Short: "See what the collection of orphan blobs does; ask for a sweep, release its breaker"}
	cmd.AddCommand(gcStatus(out), gcPlan(out), gcRun(out), gcLog(out), gcBreaker(out))
	return cmd
}

// gcView is the state of garbage collection as data.
type gcView struct {
	Holder    string       `json:"holder,omitempty"`
	Moved     string       `json:"moved,omitempty"`
	Plan      uint64       `json:"plan"`
	Sweep     *gcSweepView `json:"sweep,omitempty"`
	Last      *gcSweepView `json:"last_sweep,omitempty"`
	Requested bool         `json:"sweep_requested"`
	Reports   int          `json:"reports_waiting"`
	Postponed int          `json:"reports_postponed"`
	Deleted   uint64       `json:"deleted_blobs"`
	Bytes     uint64       `json:"deleted_bytes"`
	Markers   uint64       `json:"markers"`
	Requests  uint64       `json:"requests_of_the_day"`
	Breaker   *gc.Breaker  `json:"breaker,omitempty"`
	Holds     bool         `json:"breaker_holds"`
	Retention gcFramesView `json:"raw_frames_retention"`
}

// gcFramesView is what retention has removed of raw frames in the last day, which rollup workers do by the same order of marker,
// proof, log and delete.
type gcFramesView struct {
	Removals int    `json:"removals_of_a_day"`
	Last     string `json:"last,omitempty"`
	By       string `json:"by,omitempty"`
	Frames   int    `json:"frames_of_the_last"`
	Bytes    uint64 `json:"bytes_of_the_last"`
}

type gcSweepView struct {
	Began string `json:"began"`
	Ended string `json:"ended,omitempty"`
	gc.Sweep
}

func viewSweep(s gc.Sweep) *gcSweepView {
	if s.BeganAt == 0 {
		return nil
	}
	return &gcSweepView{unixTime(s.BeganAt), unixTime(s.EndedAt), s}
}

// gcStore is what the commands need of the store.
type gcStore interface {
	gc.StateStore
	objstore.Lister
}

func showGC(ctx context.Context, s gcStore) (gcView, error) {
	authority, err := accept.ReadAuthority(ctx, s)
	if err != nil {
		return gcView{}, err
	}
	st, _, err := gc.ReadState(ctx, s, authority.AuthorityID)
	if err != nil {
		return gcView{}, err
	}
	v := gcView{
		Holder: st.Holder, Moved: unixTime(st.UpdatedAt), Plan: st.Plan, Sweep: viewSweep(st.Sweep), Last: viewSweep(st.Last), Requested: st.Requested,
		Deleted: st.Deleted, Bytes: st.Bytes, Markers: st.Markers, Requests: st.Requests, Breaker: st.Breaker, Holds: st.Holds(), Postponed: len(st.Postponed),
	}
	for _, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.OrphanReportsPrefix}) {
		if err != nil {
			return v, err
		}
		v.Reports++
	}
	v.Retention, err = showRetention(ctx, s, time.Now())
	return v, err
}

// frameLogs are the keys of the logs of removed frames since a time, the oldest first.
func frameLogs(ctx context.Context, s objstore.Lister, since time.Time) (keys []string, err error) {
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.FrameLogsPrefix, StartAfter: layout.FrameLog(since, identity.Digest{})}) {
		if err != nil {
			return nil, err
		}
		keys = append(keys, o.Key)
	}
	return keys, nil
}

func showRetention(ctx context.Context, s gcStore, now time.Time) (v gcFramesView, err error) {
	keys, err := frameLogs(ctx, s, now.Add(-24*time.Hour))
	if err != nil || len(keys) == 0 {
		return v, err
	}
	l, _, err := record.Read(ctx, s, keys[len(keys)-1], framelog.Kind, framelog.Parse)
	if err != nil {
		return v, err
	}
	v = gcFramesView{Removals: len(keys), Last: time.Unix(0, l.RemovedAt).UTC().Format(time.RFC3339), By: l.By, Frames: len(l.Frames)}
	for _, f := range l.Frames {
		v.Bytes += f.FrameBytes
	}
	return v, nil
}

func gcTable(v gcView) table {
	t := table{header: []string{"WHAT", "VALUE"}}
	add := func(what string, value any) { t.rows = append(t.rows, []string{what, orDash(fmt.Sprint(value))}) }
	add("collects now", v.Holder)
	add("last move", v.Moved)
	add("plan", v.Plan)
	add("reports that wait", fmt.Sprintf("%d, %d of them because the store did not answer", v.Reports, v.Postponed))
	add("sweep requested", v.Requested)
	for _, s := range []struct {
		what string
		of   *gcSweepView
	}{{"sweep under way", v.Sweep}, {"last sweep", v.Last}} {
		if s.of == nil {
			add(s.what, "")
			continue
		}
		add(s.what, fmt.Sprintf("began %s, ended %s, %s: %d listed, %d named by the journal, %d young, %d of no known form; %d candidates, %d deleted (%d bytes), %d kept, %d of them doubtful",
			s.of.Began, orDash(s.of.Ended), fromWhat(s.of), s.of.Listed, s.of.Named, s.of.Young, s.of.Foreign, s.of.Candidates, s.of.Deleted, s.of.Bytes, s.of.Kept, s.of.Doubtful))
	}
	add("deleted blobs", v.Deleted)
	add("deleted bytes", v.Bytes)
	add("markers", v.Markers)
	add("requests of the day", v.Requests)
	if r := v.Retention; r.Removals > 0 {
		add("retention of raw frames", fmt.Sprintf("%d removals in the last day, the last one at %s by %s: %d frames (%d bytes)", r.Removals, r.Last, r.By, r.Frames, r.Bytes))
	} else {
		add("retention of raw frames", "nothing removed in the last day")
	}
	add("breaker", breakerText(v.Breaker))
	return t
}

func fromWhat(s *gcSweepView) string {
	if s.Inventory == "" {
		return "by listings"
	}
	return "by the inventory " + s.Inventory
}

func breakerText(b *gc.Breaker) string {
	if b == nil {
		return "closed"
	}
	text := fmt.Sprintf("tripped at %s by plan gc-%d: ", unixTime(b.At), b.Plan)
	switch b.Cause {
	case gc.Hidden:
		text += "the manifest " + b.Key + ", which must be there, can't be seen"
	default:
		text += fmt.Sprintf("%d candidates of %d blobs", b.Candidates, b.Listed)
	}
	if b.Released {
		return text + "; released by " + b.By
	}
	return text
}

// holds is the exit of commands while the breaker holds.
func holds(v gcView) error {
	if !v.Holds {
		return nil
	}
	return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("the breaker holds: nothing is deleted until it is released")}
}

func gcStatus(out *format) *cobra.Command {
	return &cobra.Command{
		Use:   "status URL",
		Short: "Who collects, how far the sweep is, what was deleted",
		Long:  "Reads gc/v1/state.json. Exits 3 while the breaker holds.\n\n" + bucketHelp,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v, err := showGC(cmd.Context(), store)
			if err != nil {
				return reached(err)
			}
			if err := out.write(cmd.OutOrStdout(), v, gcTable(v)); err != nil {
				return err
			}
			return holds(v)
		},
	}
}

// gcPlanView is a plan as data.
type gcPlanView struct {
	Listed     int               `json:"listed"`
	Kept       map[gc.Reason]int `json:"kept"`
	Candidates int               `json:"candidates"`
	Bytes      int64             `json:"candidate_bytes"`
	Tripped    bool              `json:"breaker_would_trip"`
	Blobs      []gcBlobView      `json:"blobs"`
}

type gcBlobView struct {
	Key      string `json:"key"`
	Bytes    int64  `json:"bytes"`
	Modified string `json:"modified"`
	Reason   string `json:"reason,omitempty"`
}

// planGC plans a whole sweep, and asks for references to its candidates. It writes nothing.
func planGC(ctx context.Context, s gc.Store, minAge time.Duration, limit int, progress func(string)) (gcPlanView, error) {
	authority, err := accept.ReadAuthority(ctx, s)
	if err != nil {
		return gcPlanView{}, err
	}
	page, err := s.List(ctx, objstore.ListOptions{Prefix: layout.OrphanReportsPrefix, Limit: 1})
	if err != nil {
		return gcPlanView{}, err
	}
	c, err := gc.New(gc.Config{Store: s, AuthorityID: authority.AuthorityID, Clock: run.WallClock{}})
	if err != nil {
		return gcPlanView{}, err
	}
	v := gcPlanView{Kept: map[gc.Reason]int{}, Blobs: []gcBlobView{}}
	for after := ""; ; {
		names, err := c.ReadNames(ctx, gc.NamesOptions{StartAfter: after})
		if err != nil {
			return v, err
		}
		for done := false; !done; {
			p, err := c.PlanNamed(ctx, names, gc.PlanOptions{ID: "lmctl", Now: page.Date, MinAge: max(minAge, -1), StartAfter: after})
			if err != nil {
				return v, err
			}
			v.Tripped = v.Tripped || p.Tripped()
			if err := c.Search(ctx, &p, 0, nil); err != nil {
				return v, err
			}
			v.Listed += p.Listed
			for _, k := range p.Candidates {
				v.Candidates++
				v.Bytes += k.Size
				if len(v.Blobs) < limit {
					v.Blobs = append(v.Blobs, gcBlobView{Key: k.Key, Bytes: k.Size, Modified: k.LastModified.UTC().Format(time.RFC3339)})
				}
			}
			for _, k := range p.Kept {
				v.Kept[k.Reason]++
				if k.Reason.Doubtful() && len(v.Blobs) < limit {
					v.Blobs = append(v.Blobs, gcBlobView{Key: k.Key, Reason: string(k.Reason)})
				}
			}
			if p.Next == "" {
				return v, nil
			}
			progress(fmt.Sprintf("%d blobs listed, %d candidates so far", v.Listed, v.Candidates))
			after = p.Next
			done = !names.Reaches(after)
		}
	}
}

func gcPlanTable(v gcPlanView) table {
	t := table{header: []string{"BLOB", "BYTES", "MODIFIED", "WHAT"}}
	for _, b := range v.Blobs {
		what := "orphan"
		if b.Reason != "" {
			what = "kept: " + b.Reason
		}
		t.rows = append(t.rows, []string{b.Key, fmt.Sprint(b.Bytes), orDash(b.Modified), what})
	}
	return t
}

func gcPlan(out *format) *cobra.Command {
	var minAge time.Duration
	var limit int
	cmd := &cobra.Command{
		Use:   "plan URL",
		Short: "What a sweep would delete now; writes nothing",
		Long: "Lists all blobs, leaves out those that the journal names or that are younger than --min-age, and asks for the\n" +
			"references of the others: one LIST per 1,000 blobs, one GET per file of the journal, three GETs for each candidate.\n" +
			"Exits 3 where the breaker would trip, or blobs are doubtful.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if minAge <= 0 || limit < 0 {
				return usageError("--min-age must be greater than 0, and --limit must not be negative")
			}
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v, err := planGC(cmd.Context(), store, minAge, limit, func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) })
			if err != nil {
				return reached(err)
			}
			if err := out.write(cmd.OutOrStdout(), v, gcPlanTable(v)); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%d blobs listed, %d orphans of %d bytes, kept: %v\n", v.Listed, v.Candidates, v.Bytes, v.Kept)
			doubtful := v.Kept[gc.FrameUnreadable] + v.Kept[gc.RecordUnreadable] + v.Kept[gc.Foreign]
			if v.Tripped || doubtful > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("the breaker would trip: %v; %d blobs are doubtful", v.Tripped, doubtful)}
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&minAge, "min-age", gc.DefaultMinAge, "age below which a blob is left alone")
	cmd.Flags().IntVar(&limit, "limit", 1000, "most blobs that are shown")
	return cmd
}

// waitForSweep waits until the sweep that was asked for after before has ended, or the breaker holds.
func waitForSweep(ctx context.Context, s gcStore, before gcView, poll time.Duration, report func(string)) (gcView, error) {
	last := ""
	for {
		v, err := showGC(ctx, s)
		if err != nil {
			return v, err
		}
		if v.Holds || !v.Requested && v.Sweep == nil && v.Plan > before.Plan {
			return v, nil
		}
		line := "a reconciler takes it up within its gc.poll_interval"
		if v.Sweep != nil {
			line = fmt.Sprintf("%d blobs listed, %d deleted so far", v.Sweep.Listed, v.Sweep.Deleted)
		}
		if line != last {
			last = line
			report(line)
		}
		if err := run.Sleep(ctx, poll); err != nil {
			return v, fmt.Errorf("the sweep goes on without this command: %w", err)
		}
	}
}

func gcRun(out *format) *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use:   "run URL",
		Short: "Ask for a sweep now, which a reconciler does",
		Long: "Notes in gc/v1/state.json that a sweep is wanted: a reconciler takes it up within its gc.poll_interval, at its rate; those\n" +
			"with gc.mode dry_run only log what they find, and the request stays. This\n" +
			"command waits until it has ended; when it is interrupted, or with --detach, the sweep goes on. Exits 3 when\n" +
			"the breaker trips.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			v, err := showGC(cmd.Context(), store)
			if err != nil {
				return reached(err)
			}
			authority, err := accept.ReadAuthority(cmd.Context(), store)
			if err != nil {
				return reached(err)
			}
			if _, err := gc.RequestSweep(cmd.Context(), store, authority.AuthorityID); err != nil {
				return reached(err)
			}
			if !detach {
				if v, err = waitForSweep(cmd.Context(), store, v, 2*time.Second, func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }); err != nil {
					return reached(err)
				}
			}
			if err := out.write(cmd.OutOrStdout(), v, gcTable(v)); err != nil {
				return err
			}
			return holds(v)
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "do not wait")
	return cmd
}

// gcLogView is an entry of the log.
type gcLogView struct {
	At     string    `json:"at"`
	By     string    `json:"by"`
	Plan   string    `json:"plan"`
	Source gc.Source `json:"source"`
	gc.LogEntry
}

// readGCLog reads the newest logs until there are enough entries; the newest come last.
func readGCLog(ctx context.Context, s gcStore, limit int, plan string) ([]gcLogView, error) {
	var keys []string
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: layout.BlobLogsPrefix}) {
		if err != nil {
			return nil, err
		}
		keys = append(keys, o.Key)
	}
	views := []gcLogView{}
	for _, key := range slices.Backward(keys) {
		if len(views) >= limit {
			break
		}
		l, _, err := record.Read(ctx, s, key, gc.LogKind, gc.ParseLog)
		if err != nil {
			return nil, err
		}
		if plan != "" && l.Plan != plan {
			continue
		}
		for _, e := range slices.Backward(l.Entries) {
			views = append(views, gcLogView{time.Unix(0, l.At).UTC().Format(time.RFC3339), l.By, l.Plan, l.Source, e})
		}
	}
	views = views[:min(len(views), limit)]
	slices.Reverse(views)
	return views, nil
}

// readFrameLog reads the newest logs of retention, as readGCLog.
func readFrameLog(ctx context.Context, s gcStore, limit int, since time.Time) ([]gcLogView, error) {
	keys, err := frameLogs(ctx, s, since)
	if err != nil {
		return nil, err
	}
	views := []gcLogView{}
	for _, key := range slices.Backward(keys) {
		if len(views) >= limit {
			break
		}
		l, _, err := record.Read(ctx, s, key, framelog.Kind, framelog.Parse)
		if err != nil {
			return nil, err
		}
		for _, f := range slices.Backward(l.Frames) {
			for _, key := range f.Keys {
				views = append(views, gcLogView{time.Unix(0, l.RemovedAt).UTC().Format(time.RFC3339), l.By, "", "RETENTION",
					gc.LogEntry{Key: key, Action: "REMOVED", Detail: f.Identity.String(), Bytes: int64(f.FrameBytes)}})
			}
		}
	}
	views = views[:min(len(views), limit)]
	slices.Reverse(views)
	return views, nil
}

// frameLogSpan is how far back gc log --frames looks.
const frameLogSpan = 30 * 24 * time.Hour

func gcLog(out *format) *cobra.Command {
	var limit int
	var plan string
	var frames bool
	cmd := &cobra.Command{
		Use:   "log URL",
		Short: "What was condemned, deleted and kept, and why",
		Long: "Reads gc/v1/log/blobs/, the newest entries, which come last. Nothing ever deletes it. With --frames gc/v1/log/frames/ of\n" +
			"the last 30 days: the raw frames that retention removed.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usageError("--limit: must be at least 1")
			}
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if _, err := accept.ReadAuthority(cmd.Context(), store); err != nil {
				return reached(err)
			}
			var views []gcLogView
			if frames {
				views, err = readFrameLog(cmd.Context(), store, limit, time.Now().Add(-frameLogSpan))
			} else {
				views, err = readGCLog(cmd.Context(), store, limit, plan)
			}
			if err != nil {
				return reached(err)
			}
			t := table{header: []string{"AT", "PLAN", "SOURCE", "ACTION", "BLOB", "BYTES", "REASON", "DETAIL"}}
			for _, v := range views {
				t.rows = append(t.rows, []string{v.At, v.Plan, string(v.Source), string(v.Action), v.Key, fmt.Sprint(v.Bytes), orDash(string(v.Reason)), orDash(v.Detail)})
			}
			return out.write(cmd.OutOrStdout(), views, t)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "most entries")
	cmd.Flags().StringVar(&plan, "plan", "", "only this plan, such as gc-7")
	cmd.Flags().BoolVar(&frames, "frames", false, "raw frames that retention removed, in place of orphans")
	cmd.MarkFlagsMutuallyExclusive("plan", "frames")
	return cmd
}

func gcBreaker(out *format) *cobra.Command {
	var release bool
	cmd := &cobra.Command{
		Use:   "breaker URL [--release]",
		Short: "Why nothing is deleted; let it go on",
		Long: "The breaker trips on a plan of more than 50 blobs and more than 10% of those that it was chosen from, and where a\n" +
			"manifest that must be there can't be seen. --release lets one plan pass that is not larger than the one that\n" +
			"tripped it, or notes that this manifest is known to be lost. See lmctl gc plan first. Exits 3 while it holds.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if release {
				authority, err := accept.ReadAuthority(cmd.Context(), store)
				if err != nil {
					return reached(err)
				}
				by := "lmctl"
				if u, err := user.Current(); err == nil {
					by += " of " + u.Username
				}
				if _, err := gc.ReleaseBreaker(cmd.Context(), store, authority.AuthorityID, by); err != nil {
					return reached(err)
				}
			}
			v, err := showGC(cmd.Context(), store)
			if err != nil {
				return reached(err)
			}
			if err := out.write(cmd.OutOrStdout(), v.Breaker, table{header: []string{"BREAKER"}, rows: [][]string{{breakerText(v.Breaker)}}}); err != nil {
				return err
			}
			return holds(v)
		},
	}
	cmd.Flags().BoolVar(&release, "release", false, "let the collection go on")
	return cmd
}
