package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// pendingWork is how to reach the coordinator's pending work.
type pendingWork struct{ service }

func (p *pendingWork) flags(cmd *cobra.Command) {
	p.service.flags(cmd, "127.0.0.1:4781", "coordinator")
}

// ask has no deadline of its own: each call has one, and a watch lasts.
func (p *pendingWork) ask(fn func(*coordinator.PendingWork) error) error {
	return p.over(func(conn grpc.ClientConnInterface) error { return fn(coordinator.NewPendingWork(conn, 0)) })
}

type jobView struct {
	Log      string `json:"log"`
	Number   uint64 `json:"number"`
	Status   string `json:"status"`
	Owner    string `json:"owner"`
	Attempts uint32 `json:"attempts"`
	Fence    uint64 `json:"fence"`
	Created  string `json:"created_at"`
	Modified string `json:"modified_at"`
	Topic    string `json:"topic"`
	Progress any    `json:"progress"`
}

// jobStatus of a row: running; expired, its owner is silent; stuck, tried often without
// progress; waiting.
func jobStatus(r work.Row) string {
	switch {
	// The order matters: a job that was tried often is not stuck while a worker has it, and is stuck
	// rather than expired when none has.
	case r.Live:
		return "running"
	case r.Attempts >= work.DefaultMaxAttempts:
		return "stuck"
	case r.Active:
		return "expired"
	}
	return "waiting"
}

// progress is a checkpoint as people can read it.
func progress(state []byte) any {
	switch {
	case len(state) == 0:
		return nil
	case json.Valid(state):
		return json.RawMessage(state)
	case utf8.Valid(state):
		return string(state)
	}
	return fmt.Sprintf("%d bytes", len(state))
}

func viewJob(r work.Row) jobView {
	return jobView{Log: r.Log, Number: r.Number, Status: jobStatus(r), Owner: r.Owner, Attempts: r.Attempts, Fence: r.Fence,
		Created: r.Created.UTC().Format(time.RFC3339), Modified: r.Modified.UTC().Format(time.RFC3339), Topic: r.Topic, Progress: progress(r.State)}
}

var jobHeader = []string{"LOG", "NUMBER", "STATUS", "ATTEMPTS", "MODIFIED", "OWNER", "PROGRESS"}

func (v jobView) row() []string {
	p := "-"
	switch x := v.Progress.(type) {
	case json.RawMessage:
		p = string(x)
	case string:
		p = x
	}
	// A checkpoint may be kilobytes; JSON output has all of it.
	if len(p) > 80 {
		p = p[:80] + "…"
	}
	return []string{v.Log, fmt.Sprint(v.Number), v.Status, fmt.Sprint(v.Attempts), v.Modified, orDash(v.Owner), p}
}

// allRows reads every page.
func allRows(ctx context.Context, t work.Table, prefix string) ([]work.Row, error) {
	var all []work.Row
	for after := ""; ; {
		rows, next, err := t.Rows(ctx, prefix, after, work.MaxPage)
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
		if next == "" {
			return all, nil
		}
		after = next
	}
}

func jobsCommand(out *format) *cobra.Command {
	p := &pendingWork{}
	cmd := &cobra.Command{Use: "jobs", Short: "Pending jobs: list, watch, cancel; dead letters"}
	cmd.AddCommand(jobsList(out, p), jobsWatch(out, p), jobsCancel(out, p), jobsDead(out, p), jobsRedrive(p))
	p.flags(cmd)
	return cmd
}

func jobsList(out *format, p *pendingWork) *cobra.Command {
	var prefix string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List pending jobs; exits 3 when one is stuck",
		Long:  "Lists pending jobs. Exits 3 when one was tried 5 times without a checkpoint and nobody works on it.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			views, rows, stuck := []jobView{}, [][]string{}, 0
			err := p.ask(func(s *coordinator.PendingWork) error {
				all, err := allRows(cmd.Context(), s, prefix)
				for _, r := range all {
					v := viewJob(r)
					if v.Status == "stuck" {
						stuck++
					}
					views, rows = append(views, v), append(rows, v.row())
				}
				return err
			})
			if err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), views, table{header: jobHeader, rows: rows}); err != nil {
				return err
			}
			if stuck > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d jobs are stuck", stuck)}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&prefix, "log", "", "only logs at and below this one, such as snapshot/0001")
	return cmd
}

// jobEvent is what a watch prints.
type jobEvent struct {
	Event string  `json:"event"` // pending, changed, gone
	Job   jobView `json:"job"`
}

// differences are the events between two listings.
func differences(old, now []work.Row) []jobEvent {
	var events []jobEvent
	// Rows that are found again are taken out of known, so what is left in it at the end is gone.
	known := map[work.Key]work.Row{}
	for _, r := range old {
		known[r.Key] = r
	}
	for _, r := range now {
		was, ok := known[r.Key]
		delete(known, r.Key)
		switch {
		case !ok:
			events = append(events, jobEvent{"pending", viewJob(r)})
		case was.Increment != r.Increment || jobStatus(was) != jobStatus(r):
			events = append(events, jobEvent{"changed", viewJob(r)})
		}
	}
	// Over old and not over the map, whose order is random: equal changes print equal lines.
	for _, r := range old {
		if _, left := known[r.Key]; left {
			events = append(events, jobEvent{"gone", viewJob(r)})
		}
	}
	return events
}

// jobWatch reads the pending jobs again and again, and prints what changed.
type jobWatch struct {
	prefix     string
	interval   time.Duration
	untilEmpty bool
	print      func(jobEvent) error
}

// run watches until ctx ends, which is no error.
func (w *jobWatch) run(ctx context.Context, s *coordinator.PendingWork) error {
	var last []work.Row
	for {
		rows, err := allRows(ctx, s, w.prefix)
		// Checked before err, which is then only the interrupted call: an interrupt is how a watch ends.
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range differences(last, rows) {
			if err := w.print(e); err != nil {
				return err
			}
		}
		// Only after the events were printed, so that the last "gone" is seen.
		if last = rows; w.untilEmpty && len(rows) == 0 {
			return nil
		}
		if (run.WallClock{}).Sleep(ctx, w.interval) != nil {
			return nil
		}
	}
}

// printJobEvents prints one line for each event.
func printJobEvents(to io.Writer, asJSON bool) func(jobEvent) error {
	enc := json.NewEncoder(to)
	return func(e jobEvent) error {
		if asJSON {
			return enc.Encode(e)
		}
		r := e.Job.row()
		_, err := fmt.Fprintf(to, "%s %-7s %s#%s %s attempts=%s owner=%s %s\n", e.Job.Modified, e.Event, r[0], r[1], r[2], r[3], r[5], r[6])
		return err
	}
}

func jobsWatch(out *format, p *pendingWork) *cobra.Command {
	var (
		prefix     string
		interval   time.Duration
		untilEmpty bool
	)
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print jobs as they are created, make progress and end, until interrupted",
		Long:  "Prints one line per change, as JSON with -o json.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Each reading lists all pending jobs, which costs the coordinator a scan.
			if interval < 100*time.Millisecond {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("--interval: at least 100ms")}
			}
			w := jobWatch{prefix: prefix, interval: interval, untilEmpty: untilEmpty, print: printJobEvents(cmd.OutOrStdout(), out.String() == "json")}
			return p.ask(func(s *coordinator.PendingWork) error { return w.run(cmd.Context(), s) })
		},
	}
	cmd.Flags().StringVar(&prefix, "log", "", "only logs at and below this one")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two readings")
	cmd.Flags().BoolVar(&untilEmpty, "until-empty", false, "end when no job is pending")
	return cmd
}

// cancelTries is how often a row is read again that changed meanwhile.
const cancelTries = 20

// cancelJob ends a job whoever works on it. Its number counts as completed, so that what
// follows in its log does not wait for it.
func cancelJob(ctx context.Context, t work.Table, k work.Key) (work.Row, error) {
	var last error
	for range cancelTries {
		r, err := t.Get(ctx, k)
		if err != nil {
			return r, err
		}
		// ErrMoved means that the worker wrote a checkpoint in between. The row is read again, since Done
		// takes effect only on the state that it names.
		if last = t.Done(ctx, r); !errors.Is(last, work.ErrMoved) {
			return r, last
		}
	}
	return work.Row{}, last
}

func jobsCancel(out *format, p *pendingWork) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel LOG NUMBER",
		Short: "Cancel a pending job: its worker stops at its next checkpoint",
		Long: "Removes the job and records its number as completed, so that the jobs behind it do not wait.\n" +
			"A worker that has it stops at its next checkpoint. What it has written stays.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil {
				return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("NUMBER %q: %w", args[1], err)}
			}
			return p.ask(func(s *coordinator.PendingWork) error {
				r, err := cancelJob(cmd.Context(), s, work.Key{Log: args[0], Number: n})
				if err != nil {
					return err
				}
				v := viewJob(r)
				return out.write(cmd.OutOrStdout(), v, table{header: jobHeader, rows: [][]string{v.row()}})
			})
		},
	}
}

type letterView struct {
	ID     string `json:"id"`
	Topic  string `json:"topic"`
	Tries  int    `json:"tries"`
	Buried string `json:"buried_at"`
	Reason string `json:"reason"`
	Body   any    `json:"body"`
}

// snapshotTopics is what the topics of snapshots begin with: each shard has one.
const snapshotTopics = "snapshot-"

// checkTopic refuses a topic that no service uses: its empty list could be taken for good news.
func checkTopic(topic string) error {
	if topic == reprocess.Topic {
		return nil
	}
	if number, ok := strings.CutPrefix(topic, snapshotTopics); ok {
		if _, err := shard.Parse(number); err == nil {
			return nil
		}
	}
	return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("topic %q: want %s, or %s and a shard as in lmctl shards list: %s0007", topic, reprocess.Topic, snapshotTopics, snapshotTopics)}
}

func jobsDead(out *format, p *pendingWork) *cobra.Command {
	return &cobra.Command{
		Use:               "dead TOPIC",
		ValidArgsFunction: p.completeTopics,
		Short:             "List a topic's dead letters; exits 3 when there are any",
		Example:           "  lmctl jobs dead snapshot-0007",
		Args:              cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkTopic(args[0]); err != nil {
				return err
			}
			views, rows := []letterView{}, [][]string{}
			err := p.ask(func(s *coordinator.PendingWork) error {
				for after := ""; ; {
					ds, next, err := s.DeadLetters(cmd.Context(), args[0], after, work.MaxPage)
					if err != nil {
						return err
					}
					for _, d := range ds {
						v := letterView{d.ID, d.Topic, d.Tries, d.Buried.UTC().Format(time.RFC3339), d.Reason, progress(d.Body)}
						views = append(views, v)
						rows = append(rows, []string{v.ID, fmt.Sprint(v.Tries), v.Buried, v.Reason})
					}
					if after = next; after == "" {
						return nil
					}
				}
			})
			if err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), views, table{header: []string{"ID", "TRIES", "BURIED AT", "REASON"}, rows: rows}); err != nil {
				return err
			}
			if len(views) > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d dead letters", len(views))}
			}
			return nil
		},
	}
}

func jobsRedrive(p *pendingWork) *cobra.Command {
	return &cobra.Command{
		Use:               "redrive TOPIC ID",
		ValidArgsFunction: p.completeTopics,
		Short:             "Send a dead letter again",
		Args:              cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkTopic(args[0]); err != nil {
				return err
			}
			return p.ask(func(s *coordinator.PendingWork) error { return s.Redrive(cmd.Context(), args[0], args[1]) })
		},
	}
}
