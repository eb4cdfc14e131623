package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// storeAddress is the admin address of an embedded object store.
type storeAddress struct {
	url    string
	client http.Client
}

// storeVariable holds the address in the environment.
const storeVariable = "LMCTL_STORE_ADDR"

// flags adds --addr to a command. The address is plain HTTP: it is of this machine, or of a proxy's other end.
func (a *storeAddress) flags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&a.url, "addr", "127.0.0.1:4791", "[http://]host:port of the store's admin address; "+storeVariable)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("addr") {
			a.url = cmp.Or(os.Getenv(storeVariable), a.url)
		}
		hostport, scheme, err := parseAddress(a.url, true)
		if err != nil {
			return err
		}
		a.url = cmp.Or(scheme, "http") + "://" + hostport
		a.client.Timeout = askTimeout
		return nil
	}
	return cmd
}

// ask sends a request and decodes the answer into to; in is the body of a POST, nil for a GET.
func (a *storeAddress) ask(ctx context.Context, path string, in, to any) error {
	method, body := http.MethodGet, io.Reader(nil)
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		method, body = http.MethodPost, bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.url+path, body)
	if err != nil {
		return &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return &cli.ExitError{Code: cli.ExitUnreachable, Err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return &cli.ExitError{Code: cli.ExitUnreachable, Err: err}
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %s", method, req.URL, resp.Status, strings.TrimSpace(string(b)))
	}
	if err := json.Unmarshal(b, to); err != nil {
		return fmt.Errorf("%s %s: %w", method, req.URL, err)
	}
	return nil
}

func (a *storeAddress) status(ctx context.Context) (s objectstore.RedundancyStatus, err error) {
	return s, a.ask(ctx, "/redundancy", nil, &s)
}

// when writes a time for people; a dash for none.
func atTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func storePlacesCommands(out *format) []*cobra.Command {
	return []*cobra.Command{storeDrivesCommand(out), storePlacesCommand(out), storeHealCommand(out), storeScrubCommand(out), storePolicyCommand(out), storeLedgerCommand(out), storeDLQCommand(out)}
}

func storeDrivesCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	return a.flags(&cobra.Command{
		Use:   "drives",
		Short: "The places of an embedded object store; exits 3 when one is away or full",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.status(cmd.Context())
			if err != nil {
				return err
			}
			var bad []string
			for _, p := range s.Places {
				if state := p.Is(); state == "away" || state == "full" {
					bad = append(bad, p.Name+" is "+state)
				}
			}
			if err := out.write(cmd.OutOrStdout(), s.Places, placesTable(s)); err != nil {
				return err
			}
			if len(bad) > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New(strings.Join(bad, "; "))}
			}
			return nil
		},
	})
}

func placesTable(s objectstore.RedundancyStatus) table {
	t := table{header: []string{"PLACE", "STATE", "LAST SEEN", "FILES", "USED", "FREE", "ROOM", "LISTED", "ERROR"}}
	for _, p := range s.Places {
		t.rows = append(t.rows, []string{p.Name, p.Is(), atTime(p.Seen), fmt.Sprint(p.Files), byteCount(p.Used), byteCount(p.Free), roomOf(p.PlaceStatus),
			atTime(p.Listing.Ended), orDash(cmp.Or(p.Error, p.Listing.Error))})
	}
	return t
}

// byteCount writes a number of bytes; a dash for one that is not known.
func byteCount(n int64) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// roomOf writes what a place may have, and how much of it is used.
func roomOf(p objectstore.PlaceStatus) string {
	if p.Room <= 0 {
		return "-"
	}
	return fmt.Sprintf("%d (%d%%)", p.Room, p.Used*100/p.Room)
}

func storeHealCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	now := false
	cmd := a.flags(&cobra.Command{
		Use:   "heal",
		Short: "How far lost files are made again; exits 3 while some are missing",
		Long: "Shows how many files of bodies are missing, and how far they are made again. A store heals by itself: when a place\n" +
			"was replaced, and when one is away for longer than redundancy.heal_after. With --now every place is listed and every\n" +
			"body looked at without waiting.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if now {
				if err := a.ask(cmd.Context(), "/redundancy/heal", struct{}{}, new(struct{})); err != nil {
					return err
				}
			}
			s, err := a.status(cmd.Context())
			if err != nil {
				return err
			}
			left := "-"
			if d := s.Heal.Left(s.Time); d > 0 {
				left = d.String()
			}
			t := table{header: []string{"WHAT", "VALUE"}, rows: [][]string{
				{"missing files", fmt.Sprint(s.Missing)}, {"most at once", fmt.Sprint(s.Heal.Most)}, {"since", atTime(s.Heal.Began)}, {"left, at the pace so far", left},
				{"bodies that wait", fmt.Sprintf("%d, the oldest for %.0f s", s.Queued, s.OldestSeconds)}, {"dead letters", fmt.Sprint(s.DeadLetters)},
				{"made since the start", fmt.Sprintf("%d files, %d bytes", s.Counters.FilesMade, s.Counters.BytesMade)},
			}}
			if err := out.write(cmd.OutOrStdout(), s.Heal, t); err != nil {
				return err
			}
			if s.Missing+s.DeadLetters > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d files are missing, %d bodies were tried too often", s.Missing, s.DeadLetters)}
			}
			return nil
		},
	})
	cmd.Flags().BoolVar(&now, "now", false, "list all places and look at all bodies now")
	return cmd
}

func storeScrubCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	now := false
	cmd := a.flags(&cobra.Command{
		Use:   "scrub",
		Short: "How far all files are read back; exits 3 when that is overdue",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if now {
				if err := a.ask(cmd.Context(), "/redundancy/scrub", struct{}{}, new(struct{})); err != nil {
					return err
				}
			}
			s, err := a.status(cmd.Context())
			if err != nil {
				return err
			}
			period := time.Duration(s.ScrubPeriodSeconds * float64(time.Second))
			t := table{header: []string{"WHAT", "VALUE"}, rows: [][]string{
				{"period", period.String()}, {"this pass began", atTime(s.Scrub.Began)}, {"ended", atTime(s.Scrub.Ended)}, {"files read", fmt.Sprint(s.Scrub.Files)},
				{"bytes read", fmt.Sprint(s.Scrub.Bytes)}, {"missing or damaged", fmt.Sprint(s.Scrub.Found)}, {"last pass ended", atTime(s.Scrub.Last)},
			}}
			if err := out.write(cmd.OutOrStdout(), s.Scrub, t); err != nil {
				return err
			}
			if d := s.Overdue(); d > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("reading back all files is overdue by %v", d.Round(time.Second))}
			}
			return nil
		},
	})
	cmd.Flags().BoolVar(&now, "now", false, "begin another pass now")
	return cmd
}

func storePolicyCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	return a.flags(&cobra.Command{
		Use:   "policy",
		Short: "The redundancy policy in force, and how far bodies follow it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.status(cmd.Context())
			if err != nil {
				return err
			}
			p := s.Policy
			t := table{header: []string{"WHAT", "VALUE"}, rows: [][]string{{"version", fmt.Sprint(p.Version)}, {"copies", fmt.Sprint(p.Copies)}}}
			if p.Data > 0 {
				t.rows = append(t.rows, []string{"coded", fmt.Sprintf("rs-v1 %d+%d, from %d bytes on", p.Data, p.Parity, p.Threshold)},
					[]string{"share of a shard in a stripe", fmt.Sprintf("%d to %d bytes", p.MinChunk, p.MaxChunk)})
			}
			for _, f := range s.Files {
				t.rows = append(t.rows, []string{"files " + f.State, fmt.Sprint(f.Files)})
			}
			if g := s.Segments; g.Coded > 0 || g.Waiting > 0 {
				t.rows = append(t.rows, []string{"coded segments of the log", fmt.Sprintf("%d of %d bytes", g.Coded, g.CodedBytes)},
					[]string{"segments to be coded", fmt.Sprint(g.Waiting)})
			}
			t.rows = append(t.rows, []string{"bodies that wait", fmt.Sprint(s.Queued)},
				[]string{"bodies last gone over", atTime(s.Sweep.Last)})
			return out.write(cmd.OutOrStdout(), p, t)
		},
	})
}

func storeLedgerCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	var body, state, place string
	most, queue := 1000, false
	cmd := a.flags(&cobra.Command{
		Use:   "ledger",
		Short: "Which file of which body is where",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if queue {
				return a.letters(cmd, out, "/redundancy/queue", most)
			}
			all := objectstore.RedundancyFiles{}
			for after := ""; len(all.Files) < most; {
				q := url.Values{"body": {body}, "state": {state}, "place": {place}, "after": {after}, "limit": {fmt.Sprint(min(1000, most-len(all.Files)))}}
				var page objectstore.RedundancyFiles
				if err := a.ask(cmd.Context(), "/redundancy/files?"+q.Encode(), nil, &page); err != nil {
					return err
				}
				all.Files = append(all.Files, page.Files...)
				if len(page.Files) == 0 || body != "" {
					break
				}
				after = page.Files[len(page.Files)-1].After
			}
			t := table{header: []string{"BODY", "POLICY", "KIND", "INDEX", "OF", "PLACE", "STATE", "BODY BYTES", "VERIFIED", "ERROR"}}
			for _, f := range all.Files {
				t.rows = append(t.rows, []string{f.Body, fmt.Sprint(f.Policy), f.Kind, fmt.Sprint(f.Index), f.Scheme, f.Place, f.State, fmt.Sprint(f.Size), atTime(f.Verified), orDash(f.Error)})
			}
			return out.write(cmd.OutOrStdout(), all.Files, t)
		},
	})
	cmd.Flags().StringVar(&body, "body", "", "of this body only")
	cmd.Flags().StringVar(&state, "state", "", "in this state only: staged, uploading, uploaded, verifying, durable, failed, removing")
	cmd.Flags().StringVar(&place, "place", "", "at this place only")
	cmd.Flags().IntVar(&most, "limit", most, "how many at most")
	cmd.Flags().BoolVar(&queue, "queue", false, "bodies that need something, instead")
	cmd.MarkFlagsMutuallyExclusive("body", "state", "place", "queue")
	return cmd
}

// letters prints messages.
func (a *storeAddress) letters(cmd *cobra.Command, out *format, path string, most int) error {
	var l objectstore.RedundancyLetters
	if err := a.ask(cmd.Context(), fmt.Sprintf("%s?limit=%d", path, most), nil, &l); err != nil {
		return err
	}
	t := table{header: []string{"BODY", "SINCE", "ATTEMPTS", "DUE", "REASON", "ERROR"}}
	for _, m := range l.Bodies {
		t.rows = append(t.rows, []string{m.Body, atTime(m.First), fmt.Sprint(m.Attempts), atTime(m.Due), m.Reason, orDash(m.Error)})
	}
	if err := out.write(cmd.OutOrStdout(), l.Bodies, t); err != nil {
		return err
	}
	if path == deadLetters && len(l.Bodies) > 0 {
		return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("bodies were tried too often")}
	}
	return nil
}

const deadLetters = "/redundancy/dead-letters"

func storeDLQCommand(out *format) *cobra.Command {
	a := &storeAddress{}
	retry, drop := "", ""
	cmd := a.flags(&cobra.Command{
		Use:   "dlq [--retry BODY | --drop BODY]",
		Short: "Bodies that were tried too often; exits 3 when there are some",
		Long: "Lists bodies that could not be made redundant, or read, in all attempts. --retry tries one again, --retry all each of\n" +
			"them. --drop takes a dead letter away: nothing is deleted, and the next look at all bodies may queue it again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case retry == "all":
				return a.retryAll(cmd.Context())
			case retry != "":
				return a.ask(cmd.Context(), deadLetters, objectstore.RedundancyOrder{Body: retry, Action: "retry"}, new(struct{}))
			case drop != "":
				return a.ask(cmd.Context(), deadLetters, objectstore.RedundancyOrder{Body: drop, Action: "drop"}, new(struct{}))
			}
			return a.letters(cmd, out, deadLetters, 1000)
		},
	})
	cmd.Flags().StringVar(&retry, "retry", "", "body that is tried again, or all")
	cmd.Flags().StringVar(&drop, "drop", "", "body whose dead letter is taken away")
	cmd.MarkFlagsMutuallyExclusive("retry", "drop")
	return cmd
}

// retryAll tries each dead letter again that there is now.
func (a *storeAddress) retryAll(ctx context.Context) error {
	for {
		var l objectstore.RedundancyLetters
		if err := a.ask(ctx, deadLetters+"?limit=1000", nil, &l); err != nil || len(l.Bodies) == 0 {
			return err
		}
		for _, m := range l.Bodies {
			if err := a.ask(ctx, deadLetters, objectstore.RedundancyOrder{Body: m.Body, Action: "retry"}, new(struct{})); err != nil {
				return err
			}
		}
	}
}
