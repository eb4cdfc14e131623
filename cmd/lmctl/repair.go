package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

func repairCommand(out *format) *cobra.Command {
	s := &settler{}
	cmd := &cobra.Command{Use: "repair", Short: "What is damaged or missing of what was accepted: list, show, try again; the check of all frames",
		Long: "Lists what is damaged or missing of what was accepted, says who was asked for its bytes, and has them asked again.\n" +
			"KEY is the key of a repair record, or the end of it that one record alone has."}
	s.flags(cmd, "127.0.0.1:4771", "reconciler")
	cmd.AddCommand(repairStatus(s, out), repairList(s, out), repairShow(s, out), repairRetry(s, out))
	return cmd
}

// scrubView is how far the check of all frames is.
type scrubView struct {
	OpenRepairs     uint64  `json:"open_repairs"`
	Pass            uint64  `json:"pass"`
	Began           string  `json:"began"`
	Ended           string  `json:"ended,omitempty"`
	Due             string  `json:"due,omitempty"`
	Overdue         bool    `json:"overdue"`
	Checked         uint64  `json:"checked"`
	Frames          uint64  `json:"frames"`
	CheckedBytes    uint64  `json:"checked_bytes"`
	Suspects        uint64  `json:"suspects"`
	VerifiedSince   string  `json:"verified_since"`
	FramesPerSecond float64 `json:"frames_per_second"`
	HashesBytes     bool    `json:"hashes_bytes"`
}

func viewScrub(r *reconcilerv1.GetStatusResponse, now time.Time) scrubView {
	v := scrubView{OpenRepairs: r.GetOpenRepairs()}
	s := r.GetScrub()
	if s == nil {
		return v
	}
	v.Pass, v.Began, v.Ended, v.Due = s.GetPass(), unixTime(s.GetBeganAtUnixS()), unixTime(s.GetEndedAtUnixS()), unixTime(s.GetDueAtUnixS())
	v.Overdue = s.GetDueAtUnixS() > 0 && now.Unix() > s.GetDueAtUnixS()
	v.Checked, v.Frames, v.CheckedBytes, v.Suspects = s.GetChecked(), s.GetFrames(), s.GetCheckedBytes(), s.GetSuspects()
	v.VerifiedSince, v.FramesPerSecond, v.HashesBytes = unixTime(s.GetVerifiedSinceUnixS()), s.GetFramesPerSecond(), s.GetHashesBytes()
	return v
}

func scrubTable(v scrubView) table {
	t := table{header: []string{"WHAT", "VALUE"}}
	add := func(what, value string) { t.rows = append(t.rows, []string{what, orDash(value)}) }
	add("open repairs", fmt.Sprint(v.OpenRepairs))
	if v.Pass == 0 {
		add("scrub", "this reconciler does not check frames, or has not asked yet")
		return t
	}
	add("pass", fmt.Sprintf("%d, began %s", v.Pass, v.Began))
	add("ended", v.Ended)
	add("due", v.Due)
	add("checked", fmt.Sprintf("%d of %d frames, %d bytes hashed", v.Checked, v.Frames, v.CheckedBytes))
	add("suspects", fmt.Sprint(v.Suspects))
	add("everything was checked since", v.VerifiedSince)
	add("pace", fmt.Sprintf("%.1f frames a second, of this reconciler", v.FramesPerSecond))
	return t
}

func repairStatus(s *settler, out *format) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "How many repairs are open, and how far the check of all frames is; exits 3 when one is open", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var v scrubView
			err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
				r, err := c.GetStatus(ctx, &reconcilerv1.GetStatusRequest{})
				v = viewScrub(r, time.Now())
				return err
			})
			if err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), v, scrubTable(v)); err != nil {
				return err
			}
			return openRepairs(v.OpenRepairs)
		},
	}
}

// openRepairs is the exit of commands while repairs are open.
func openRepairs(n uint64) error {
	if n == 0 {
		return nil
	}
	return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d repairs are open", n)}
}

type placeView struct {
	Place  string `json:"place"`
	Said   string `json:"said"`
	Detail string `json:"detail,omitempty"`
}

func viewAnswers(list []*reconcilerv1.PlaceAnswer) []placeView {
	out := []placeView{}
	for _, a := range list {
		out = append(out, placeView{a.GetPlace(), a.GetSaid(), a.GetDetail()})
	}
	return out
}

func (a placeView) String() string {
	if a.Detail == "" {
		return a.Said
	}
	return a.Said + ": " + a.Detail
}

type repairEventView struct {
	At     string `json:"at"`
	What   string `json:"what"`
	By     string `json:"by"`
	Detail string `json:"detail,omitempty"`
}

type repairView struct {
	Key          string            `json:"key"`
	ManifestKey  string            `json:"manifest_key"`
	AgentID      string            `json:"agent_id"`
	BootID       string            `json:"boot_id"`
	SeqStart     uint64            `json:"seq_start"`
	SeqEnd       uint64            `json:"seq_end"`
	Quarantined  bool              `json:"quarantined"`
	Cause        string            `json:"cause"`
	Detail       string            `json:"detail"`
	FrameSHA256  string            `json:"frame_sha256,omitempty"`
	RawBlobKey   string            `json:"raw_blob_key,omitempty"`
	FirstSeen    string            `json:"first_seen"`
	ReconcilerID string            `json:"reconciler_id"`
	Tries        uint64            `json:"tries"`
	TriedAt      string            `json:"tried_at,omitempty"`
	Answers      []placeView       `json:"answers"`
	History      []repairEventView `json:"history"`
	Error        string            `json:"error,omitempty"`
}

func viewRepair(r *reconcilerv1.Repair) repairView {
	v := repairView{Key: r.GetKey(), ManifestKey: r.GetManifestKey(), AgentID: r.GetAgentId(), BootID: r.GetBootId(), SeqStart: r.GetSeqStart(), SeqEnd: r.GetSeqEnd(),
		Quarantined: r.GetQuarantined(), Cause: r.GetCause(), Detail: r.GetDetail(), FrameSHA256: r.GetFrameSha256(), RawBlobKey: r.GetRawBlobKey(), FirstSeen: nanos(r.GetFirstSeenUnixNs()),
		ReconcilerID: r.GetReconcilerId(), Tries: r.GetTries(), TriedAt: nanos(r.GetTriedAtUnixNs()), Answers: viewAnswers(r.GetAnswers()), History: []repairEventView{}, Error: r.GetError()}
	for _, e := range r.GetHistory() {
		v.History = append(v.History, repairEventView{nanos(e.GetAtUnixNs()), e.GetWhat(), e.GetBy(), e.GetDetail()})
	}
	return v
}

// listRepairs asks for all repairs that are selected, at most limit.
func listRepairs(ctx context.Context, c reconcilerv1.ReconcilerServiceClient, agent, cause string, limit int) ([]repairView, error) {
	out := []repairView{}
	for token := ""; ; {
		page, err := c.ListRepairs(ctx, &reconcilerv1.ListRepairsRequest{AgentId: agent, Cause: cause, PageSize: 1000, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, r := range page.GetRepairs() {
			if limit > 0 && len(out) == limit {
				return out, nil
			}
			out = append(out, viewRepair(r))
		}
		if token = page.GetNextPageToken(); token == "" {
			return out, nil
		}
	}
}

// findRepair is the key of the record that name is the end of.
func findRepair(list []repairView, name string) (string, error) {
	var found []string
	for _, r := range list {
		if name != "" && strings.HasSuffix(r.Key, name) {
			found = append(found, r.Key)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("no repair record ends in %q", name)}
	}
	return "", &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("%d repair records end in %q: write more of it", len(found), name)}
}

// repairKeys are the keys that names are about.
func repairKeys(ctx context.Context, c reconcilerv1.ReconcilerServiceClient, names []string) ([]string, error) {
	var all []repairView
	out := make([]string, len(names))
	for i, n := range names {
		if strings.HasPrefix(n, "repair/v1/") {
			out[i] = n
			continue
		}
		var err error
		if all == nil {
			if all, err = listRepairs(ctx, c, "", "", 0); err != nil {
				return nil, err
			}
		}
		if out[i], err = findRepair(all, n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func repairList(s *settler, out *format) *cobra.Command {
	var agent, cause string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List open repairs; exits 3 when there are some", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list []repairView
			err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) (err error) {
				list, err = listRepairs(ctx, c, agent, cause, limit)
				return err
			})
			if err != nil {
				return err
			}
			t := table{header: []string{"CAUSE", "AGENT", "BOOT", "SEQUENCE", "FIRST SEEN", "TRIES", "LAST TRY", "KEY"}}
			for _, r := range list {
				what := r.Cause
				if r.Error != "" {
					what = "unreadable record"
				}
				t.rows = append(t.rows, []string{what, r.AgentID, r.BootID, fmt.Sprintf("%d-%d", r.SeqStart, r.SeqEnd), r.FirstSeen, fmt.Sprint(r.Tries), orDash(r.TriedAt), r.Key})
			}
			if err := out.write(cmd.OutOrStdout(), list, t); err != nil {
				return err
			}
			return openRepairs(uint64(len(list)))
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "only this agent")
	cmd.Flags().StringVar(&cause, "cause", "", "only missing_blob, corrupt_blob, bad_manifest, foreign_authority or newer_release")
	cmd.Flags().IntVar(&limit, "limit", 1000, "most repairs; 0 is all")
	return cmd
}

type blobView struct {
	Key       string `json:"key"`
	Bytes     uint64 `json:"bytes"`
	Fault     string `json:"fault,omitempty"`
	Condemned bool   `json:"condemned"`
}

type repairShowView struct {
	repairView
	Generations []blobView `json:"generations"`
	Places      []string   `json:"places"`
}

func viewShownRepair(r *reconcilerv1.GetRepairResponse) (repairShowView, table) {
	v := repairShowView{viewRepair(r.GetRepair()), []blobView{}, r.GetPlaces()}
	t := table{header: []string{"WHAT", "VALUE"}}
	add := func(what, value string) { t.rows = append(t.rows, []string{what, orDash(value)}) }
	add("key", v.Key)
	add("record", v.ManifestKey)
	add("agent", v.AgentID)
	add("boot", v.BootID)
	add("sequence", fmt.Sprintf("%d-%d", v.SeqStart, v.SeqEnd))
	add("quarantined", fmt.Sprint(v.Quarantined))
	add("cause", v.Cause)
	add("detail", v.Detail)
	add("frame", v.FrameSHA256)
	add("where it was to be", v.RawBlobKey)
	add("first seen", fmt.Sprintf("%s by %s", v.FirstSeen, v.ReconcilerID))
	if v.Error != "" {
		add("unreadable", v.Error)
	}
	for _, g := range r.GetGenerations() {
		one := blobView{g.GetKey(), g.GetBytes(), g.GetFault(), g.GetCondemned()}
		v.Generations = append(v.Generations, one)
		text := "it is the frame"
		if one.Fault != "" {
			text = one.Fault
		}
		if one.Condemned {
			text += "; condemned"
		}
		add("generation "+one.Key, text)
	}
	add("places", some(v.Places))
	add("asked", fmt.Sprintf("%d times, last %s", v.Tries, orDash(v.TriedAt)))
	for _, a := range v.Answers {
		add("answer of "+a.Place, a.String())
	}
	for _, e := range v.History {
		add(e.At, strings.TrimSuffix(e.What+" by "+e.By+": "+e.Detail, ": "))
	}
	return v, t
}

func repairShow(s *settler, out *format) *cobra.Command {
	return &cobra.Command{
		Use: "show KEY", Short: "Show a repair: what is wrong, every generation of the frame, who was asked for the bytes and what was said", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r *reconcilerv1.GetRepairResponse
			err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
				keys, err := repairKeys(ctx, c, args)
				if err != nil {
					return err
				}
				r, err = c.GetRepair(ctx, &reconcilerv1.GetRepairRequest{Key: keys[0]})
				return err
			})
			if err != nil {
				return err
			}
			v, t := viewShownRepair(r)
			return out.write(cmd.OutOrStdout(), v, t)
		},
	}
}

type repairResultView struct {
	Key     string      `json:"key"`
	Result  string      `json:"result"`
	From    string      `json:"from,omitempty"`
	BlobKey string      `json:"blob_key,omitempty"`
	Answers []placeView `json:"answers"`
	Error   string      `json:"error,omitempty"`
}

// viewResults is what a retry did; open counts what stays open.
func viewResults(list []*reconcilerv1.RepairResult) (out []repairResultView, t table, open uint64) {
	t.header = []string{"RESULT", "KEY", "FROM", "DETAIL"}
	for _, r := range list {
		v := repairResultView{r.GetKey(), r.GetResult(), r.GetFrom(), r.GetBlobKey(), viewAnswers(r.GetAnswers()), r.GetError()}
		if v.Result == "open" {
			open++
		}
		detail := v.BlobKey
		if v.Error != "" {
			detail = v.Error
		}
		for _, a := range v.Answers {
			detail += "; " + a.Place + ": " + a.Said
		}
		out = append(out, v)
		t.rows = append(t.rows, []string{v.Result, v.Key, orDash(v.From), orDash(detail)})
	}
	return out, t, open
}

func repairRetry(s *settler, out *format) *cobra.Command {
	var all bool
	var agent, cause string
	cmd := &cobra.Command{
		Use: "retry [KEY...]", Short: "Look at repairs once more and ask all places for the bytes now; exits 3 when one stays open",
		Long: "Looks at what is named once more, and asks collectors and the replica for its bytes now, whenever they were asked last.\n" +
			"With --all it is about all open repairs, or those of --agent and --cause. Needs the role operator.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) || !all && (agent != "" || cause != "") {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("want keys of repair records, or --all, which --agent and --cause narrow")}
			}
			var results []*reconcilerv1.RepairResult
			// Each call has the whole time: a hundred frames may take as long.
			call := func(fn func(context.Context, reconcilerv1.ReconcilerServiceClient) error) error {
				return s.ask(cmd.Context(), fn)
			}
			var keys []string
			err := call(func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) (err error) {
				if !all {
					keys, err = repairKeys(ctx, c, args)
					return err
				}
				list, err := listRepairs(ctx, c, agent, cause, 0)
				for _, r := range list {
					keys = append(keys, r.Key)
				}
				return err
			})
			for part := range slices.Chunk(keys, 100) {
				if err != nil {
					break
				}
				err = call(func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
					r, err := c.RetryRepairs(ctx, &reconcilerv1.RetryRepairsRequest{Keys: part})
					results = append(results, r.GetResults()...)
					return err
				})
			}
			v, t, open := viewResults(results)
			if werr := out.write(cmd.OutOrStdout(), v, t); err == nil {
				err = werr
			}
			if err != nil {
				return err
			}
			return openRepairs(open)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all open repairs")
	cmd.Flags().StringVar(&agent, "agent", "", "with --all: only this agent")
	cmd.Flags().StringVar(&cause, "cause", "", "with --all: only this cause")
	return cmd
}
