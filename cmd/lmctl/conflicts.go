package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// settler is how to reach a reconciler, which lists and settles conflicts.
type settler struct{ service }

func (s *settler) ask(ctx context.Context, fn func(context.Context, reconcilerv1.ReconcilerServiceClient) error) error {
	return s.service.ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return fn(ctx, reconcilerv1.NewReconcilerServiceClient(conn))
	})
}

type resolutionView struct {
	Number    uint64 `json:"number"`
	Action    string `json:"action"`
	AgentID   string `json:"agent_id"`
	BootID    string `json:"boot_id,omitempty"`
	Principal string `json:"principal"`
	DecidedAt string `json:"decided_at"`
	Note      string `json:"note,omitempty"`
}

func viewResolution(r *reconcilerv1.Resolution) *resolutionView {
	if r == nil {
		return nil
	}
	return &resolutionView{r.GetNumber(), r.GetAction(), r.GetAgentId(), r.GetBootId(), r.GetPrincipal(), nanos(r.GetDecidedAtUnixNs()), r.GetNote()}
}

type settlementView struct {
	SettledAt   string `json:"settled_at"`
	CollectorID string `json:"collector_id"`
	KeptBootID  string `json:"kept_boot_id,omitempty"`
	KeptSeqEnd  uint64 `json:"kept_seq_end,omitempty"`
}

type parkedView struct {
	Host       string `json:"host"`
	Page       string `json:"page,omitempty"`
	File       string `json:"file,omitempty"`
	Peer       string `json:"peer,omitempty"`
	ObservedAt string `json:"observed_at"`
}

// look says how to look at a parked batch.
func (p *parkedView) look(c conflictView) string {
	switch {
	case p == nil:
		return "lmctl agent status, on the machine of " + c.AgentID
	case p.Page == "":
		return p.File + " on " + p.Host
	}
	return "lmctl agent --addr " + shellWord(p.Page) + " status, on " + p.Host
}

type conflictView struct {
	AgentID  string `json:"agent_id"`
	BootID   string `json:"boot_id"`
	SeqStart uint64 `json:"seq_start"`
	SeqEnd   uint64 `json:"seq_end"`
	// Of the accepted batch, if that is another one that shares numbers with this one.
	AcceptedSeqStart    *uint64         `json:"accepted_seq_start,omitempty"`
	AcceptedSeqEnd      *uint64         `json:"accepted_seq_end,omitempty"`
	AcceptedSHA256      string          `json:"accepted_sha256"`
	SubmittedSHA256     string          `json:"submitted_sha256"`
	ObservedAt          string          `json:"observed_at"`
	CollectorID         string          `json:"collector_id"`
	QuarantineKey       string          `json:"quarantine_key"`
	AcceptedManifestKey string          `json:"accepted_manifest_key,omitempty"`
	AcceptedBlobKey     string          `json:"accepted_blob_key,omitempty"`
	SubmittedBlobKey    string          `json:"submitted_blob_key,omitempty"`
	ParkedID            string          `json:"parked_id"`
	ParkedAt            *parkedView     `json:"parked_at,omitempty"`
	Resolution          *resolutionView `json:"resolution,omitempty"`
	Settlement          *settlementView `json:"settlement,omitempty"`
	Error               string          `json:"error,omitempty"`
}

func viewConflict(c *reconcilerv1.Conflict) conflictView {
	v := conflictView{AgentID: c.GetAgentId(), BootID: c.GetBootId(), SeqStart: c.GetSeqStart(), SeqEnd: c.GetSeqEnd(), AcceptedSHA256: c.GetAcceptedSha256(), SubmittedSHA256: c.GetSubmittedSha256(),
		ObservedAt: nanos(c.GetObservedAtUnixNs()), CollectorID: c.GetCollectorId(), QuarantineKey: c.GetQuarantineKey(), AcceptedManifestKey: c.GetAcceptedManifestKey(), AcceptedBlobKey: c.GetAcceptedBlobKey(),
		SubmittedBlobKey: c.GetSubmittedBlobKey(), ParkedID: c.GetParkedId(), Resolution: viewResolution(c.GetResolution()), Error: c.GetError(),
		AcceptedSeqStart: c.AcceptedSeqStart, AcceptedSeqEnd: c.AcceptedSeqEnd}
	if p := c.GetParkedAt(); p != nil {
		v.ParkedAt = &parkedView{p.GetHost(), p.GetPage(), p.GetFile(), p.GetPeer(), nanos(p.GetObservedAtUnixNs())}
	}
	if s := c.GetSettlement(); s != nil {
		v.Settlement = &settlementView{nanos(s.GetSettledAtUnixNs()), s.GetCollectorId(), s.GetKeptBootId(), s.GetKeptSeqEnd()}
	}
	return v
}

// sequence is the numbers of the quarantined frame, accepted those of the accepted one.
func (v conflictView) sequence() string { return fmt.Sprintf("%d-%d", v.SeqStart, v.SeqEnd) }

func (v conflictView) accepted() string {
	if v.AcceptedSeqStart == nil || v.AcceptedSeqEnd == nil {
		return v.sequence()
	}
	return fmt.Sprintf("%d-%d", *v.AcceptedSeqStart, *v.AcceptedSeqEnd)
}

// state says in one word how far a conflict is.
func (v conflictView) state() string {
	switch {
	case v.Error != "":
		return "unreadable"
	case v.Resolution == nil:
		return "open"
	case v.Settlement == nil:
		return v.Resolution.Action + ", not done yet"
	}
	return v.Resolution.Action
}

// parkedAt is the file of the parked frame, as far as its agent has said.
func (v conflictView) parkedAt() string {
	switch {
	case v.Settlement != nil:
		return "no more: settled"
	case v.ParkedAt == nil:
		return "unknown: its agent has not said"
	}
	return v.ParkedAt.Host + ":" + v.ParkedAt.File
}

type overlapView struct {
	AgentID  string   `json:"agent_id"`
	BootID   string   `json:"boot_id"`
	Overlaps []string `json:"overlaps"`
}

type clashView struct {
	AgentID          string `json:"agent_id"`
	BootID           string `json:"boot_id"`
	SpoolID          string `json:"spool_id"`
	ObservedAt       string `json:"observed_at"`
	CollectorID      string `json:"collector_id"`
	Peer             string `json:"peer,omitempty"`
	OwnerSpoolID     string `json:"owner_spool_id"`
	OwnerSeenAt      string `json:"owner_seen_at"`
	OwnerCollectorID string `json:"owner_collector_id"`
	ClashKey         string `json:"clash_key"`
	Error            string `json:"error,omitempty"`

	observed int64
}

func viewClash(c *reconcilerv1.BootClash) clashView {
	return clashView{c.GetAgentId(), c.GetBootId(), c.GetSpoolId(), nanos(c.GetObservedAtUnixNs()), c.GetCollectorId(), c.GetPeer(), c.GetOwnerSpoolId(), nanos(c.GetOwnerSeenAtUnixNs()),
		c.GetOwnerCollectorId(), c.GetClashKey(), c.GetError(), c.GetObservedAtUnixNs()}
}

// clashesListed is how long a boot clash is listed without --all: its agent began a new boot at once, and nothing has to be
// decided about it.
const clashesListed = 30 * 24 * time.Hour

type conflictsView struct {
	Conflicts   []conflictView    `json:"conflicts"`
	Clashes     []clashView       `json:"clashes"`
	Overlaps    []overlapView     `json:"overlaps"`
	Quarantined []*resolutionView `json:"quarantined"`
}

func nanos(ns int64) string {
	if ns == 0 {
		return ""
	}
	return time.Unix(0, ns).UTC().Format(time.RFC3339)
}

// read asks for all conflicts of an agent, or of all.
func (v *conflictsView) read(ctx context.Context, c reconcilerv1.ReconcilerServiceClient, agent string, unresolved bool) error {
	*v = conflictsView{[]conflictView{}, []clashView{}, []overlapView{}, []*resolutionView{}}
	for token := ""; ; {
		page, err := c.ListConflicts(ctx, &reconcilerv1.ListConflictsRequest{AgentId: agent, PageSize: 1000, PageToken: token, Unresolved: unresolved})
		if err != nil {
			return err
		}
		for _, one := range page.GetConflicts() {
			v.Conflicts = append(v.Conflicts, viewConflict(one))
		}
		for _, c := range page.GetClashes() {
			v.Clashes = append(v.Clashes, viewClash(c))
		}
		for _, o := range page.GetOverlaps() {
			one := overlapView{o.GetAgentId(), o.GetBootId(), []string{}}
			for _, r := range o.GetOverlaps() {
				one.Overlaps = append(one.Overlaps, fmt.Sprintf("%d-%d", r.GetStart(), r.GetEnd()))
			}
			v.Overlaps = append(v.Overlaps, one)
		}
		for _, r := range page.GetQuarantined() {
			v.Quarantined = append(v.Quarantined, viewResolution(r))
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

// find selects conflicts by the beginnings of the hashes of the frames that lost.
func (v *conflictsView) find(prefixes []string) ([]conflictView, error) {
	var out []conflictView
	for _, p := range prefixes {
		n := len(out)
		for _, c := range v.Conflicts {
			if strings.HasPrefix(c.SubmittedSHA256, strings.ToLower(p)) {
				out = append(out, c)
			}
		}
		switch {
		case p == "", len(out) == n:
			return nil, &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("there is no conflict whose quarantined frame is %q", p)}
		case len(out) > n+1:
			return nil, &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("%d conflicts have quarantined frames that begin with %q: write more of it", len(out)-n, p)}
		}
	}
	return out, nil
}

func conflictsCommand(out *format) *cobra.Command {
	s := &settler{}
	cmd := &cobra.Command{Use: "conflicts", Short: "Frames that lost their identity to another: list, compare, settle; senders in quarantine",
		Long: "Lists, compares and settles conflicts, on any machine: agents learn from their collectors what was decided.\n" +
			"SHA256 is the hash of the quarantined frame, or its beginning."}
	s.flags(cmd, "127.0.0.1:4771", "reconciler")
	cmd.AddCommand(conflictsList(s, out), conflictsShow(s, out), conflictsResolve(s, out), conflictsQuarantine(s, out, false), conflictsQuarantine(s, out, true))
	return cmd
}

func conflictsList(s *settler, out *format) *cobra.Command {
	var agent string
	var all bool
	cmd := &cobra.Command{
		Use: "list", Short: "List conflicts about which nothing is decided, boot clashes, overlaps and quarantined senders; exits 3 when there are such conflicts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var v conflictsView
			err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
				return v.read(ctx, c, agent, !all)
			})
			if err != nil {
				return err
			}
			t := table{header: []string{"AGENT", "BOOT", "SEQUENCE", "ACCEPTED", "QUARANTINED", "OBSERVED", "COLLECTOR", "STATE"}}
			open := 0
			for _, c := range v.Conflicts {
				if c.Resolution == nil {
					open++
				}
				holder := c.AcceptedSHA256
				if c.accepted() != c.sequence() {
					holder += " of " + c.accepted()
				}
				t.rows = append(t.rows, []string{c.AgentID, c.BootID, c.sequence(), holder, c.SubmittedSHA256, c.ObservedAt, c.CollectorID, c.state()})
			}
			if !all {
				since := time.Now().Add(-clashesListed).UnixNano()
				v.Clashes = slices.DeleteFunc(v.Clashes, func(c clashView) bool { return c.Error == "" && c.observed < since })
			}
			for _, c := range v.Clashes {
				t.rows = append(t.rows, []string{c.AgentID, c.BootID, "", "spool " + c.OwnerSpoolID, "spool " + c.SpoolID, c.ObservedAt, c.CollectorID, cmp.Or(c.Error, "boot clash")})
			}
			for _, o := range v.Overlaps {
				t.rows = append(t.rows, []string{o.AgentID, o.BootID, some(o.Overlaps), "", "", "", "", "overlap"})
			}
			for _, r := range v.Quarantined {
				t.rows = append(t.rows, []string{r.AgentID, r.BootID, "", "", "", r.DecidedAt, "", fmt.Sprintf("quarantined by %s", r.Principal)})
			}
			if err := out.write(cmd.OutOrStdout(), v, t); err != nil {
				return err
			}
			if open > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d conflicts are open", open)}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "only this agent")
	cmd.Flags().BoolVar(&all, "all", false, "those that are decided, too, and boot clashes of more than 30 days ago")
	return cmd
}

type sideView struct {
	At          string `json:"at"`
	CollectorID string `json:"collector_id"`
	FrameBytes  uint64 `json:"frame_bytes"`
	Records     uint64 `json:"records"`
	Series      uint64 `json:"series"`
	MinTime     string `json:"min_time"`
	MaxTime     string `json:"max_time"`
	Error       string `json:"error,omitempty"`
}

func viewSide(s *reconcilerv1.FrameSide) sideView {
	return sideView{nanos(s.GetAtUnixNs()), s.GetCollectorId(), s.GetFrameBytes(), s.GetRecords(), s.GetSeries(), nanos(s.GetMinTimeUnixNs()), nanos(s.GetMaxTimeUnixNs()), s.GetError()}
}

type differenceView struct {
	Series       string `json:"series"`
	TimeUnixNs   int64  `json:"time_unix_ns"`
	AcceptedSeq  uint64 `json:"accepted_seq,omitempty"`
	SubmittedSeq uint64 `json:"submitted_seq,omitempty"`
	Accepted     string `json:"accepted,omitempty"`
	Submitted    string `json:"submitted,omitempty"`
}

type comparisonView struct {
	Conflict      conflictView     `json:"conflict"`
	Accepted      sideView         `json:"accepted"`
	Submitted     sideView         `json:"submitted"`
	Same          uint64           `json:"same"`
	Different     uint64           `json:"different"`
	OnlyAccepted  uint64           `json:"only_accepted"`
	OnlySubmitted uint64           `json:"only_submitted"`
	Differences   []differenceView `json:"differences"`
}

func conflictsShow(s *settler, out *format) *cobra.Command {
	var limit int
	var boot showBoot
	cmd := &cobra.Command{
		Use: "show SHA256 | show --agent AGENT --boot BOOT [--seq NUMBER]", Short: "Compare the accepted and the quarantined frame, record by record; or what covers a number; or who used a boot id",
		Long: "With SHA256: compares the accepted and the quarantined frame of a conflict, record by record, and says where its agent has it.\n" +
			"With --agent, --boot and --seq: compares the accepted batches that cover this number of an overlap; the first one counts.\n" +
			"With --agent and --boot: the spools that have used the boot id, of which the first one owns it.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if named := boot.agent != "" && boot.boot != ""; named == (len(args) == 1) || !named && boot != (showBoot{}) {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("want the hash of a quarantined frame, or --agent and --boot")}
			}
			switch {
			case len(args) == 1:
			case cmd.Flags().Changed("seq"):
				return boot.overlap(cmd, s, out, limit)
			default:
				return boot.clashes(cmd, s, out)
			}
			var r *reconcilerv1.GetConflictResponse
			err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
				var all conflictsView
				if err := all.read(ctx, c, "", false); err != nil {
					return err
				}
				of, err := all.find(args)
				if err != nil {
					return err
				}
				r, err = c.GetConflict(ctx, &reconcilerv1.GetConflictRequest{AgentId: of[0].AgentID, BootId: of[0].BootID, SeqStart: of[0].SeqStart, SeqEnd: of[0].SeqEnd,
					SubmittedSha256: of[0].SubmittedSHA256, Differences: int32(min(max(limit, 1), 1000))})
				return err
			})
			if err != nil {
				return err
			}
			v := comparisonView{viewConflict(r.GetConflict()), viewSide(r.GetAccepted()), viewSide(r.GetSubmitted()), r.GetSame(), r.GetDifferent(), r.GetOnlyAccepted(), r.GetOnlySubmitted(), []differenceView{}}
			c := v.Conflict
			t := table{header: []string{"WHAT", "ACCEPTED", "QUARANTINED"}, rows: [][]string{
				{"agent", c.AgentID, ""}, {"boot", c.BootID, ""}, {"sequence", c.accepted(), c.sequence()}, {"state", c.state(), ""},
				{"parked as", "", c.ParkedID}, {"parked at", "", c.parkedAt()}, {"look with", "", c.ParkedAt.look(c)},
				{"frame", c.AcceptedSHA256, c.SubmittedSHA256}, {"key", c.AcceptedBlobKey, c.SubmittedBlobKey}, {"record", c.AcceptedManifestKey, c.QuarantineKey},
				{"seen", v.Accepted.At, v.Submitted.At}, {"collector", v.Accepted.CollectorID, v.Submitted.CollectorID},
				{"records", fmt.Sprint(v.Accepted.Records), fmt.Sprint(v.Submitted.Records)}, {"series", fmt.Sprint(v.Accepted.Series), fmt.Sprint(v.Submitted.Series)},
				{"from", v.Accepted.MinTime, v.Submitted.MinTime}, {"to", v.Accepted.MaxTime, v.Submitted.MaxTime},
				{"same records", fmt.Sprint(v.Same), fmt.Sprint(v.Same)}, {"other values", fmt.Sprint(v.Different), fmt.Sprint(v.Different)},
				{"only here", fmt.Sprint(v.OnlyAccepted), fmt.Sprint(v.OnlySubmitted)},
			}}
			if v.Accepted.Error != "" || v.Submitted.Error != "" {
				t.rows = append(t.rows, []string{"unreadable", v.Accepted.Error, v.Submitted.Error})
			}
			if d := c.Resolution; d != nil {
				t.rows = append(t.rows, []string{"decided", fmt.Sprintf("%s by %s at %s", d.Action, d.Principal, d.DecidedAt), d.Note})
			}
			for _, d := range r.GetDifferences() {
				one := differenceView{d.GetSeries(), d.GetTimeUnixNs(), d.GetAcceptedSeq(), d.GetSubmittedSeq(), d.GetAccepted(), d.GetSubmitted()}
				v.Differences = append(v.Differences, one)
				t.rows = append(t.rows, []string{one.Series + " at " + time.Unix(0, one.TimeUnixNs).UTC().Format(time.RFC3339Nano), one.Accepted, one.Submitted})
			}
			return out.write(cmd.OutOrStdout(), v, t)
		},
	}
	cmd.Flags().IntVar(&limit, "differences", 20, "most differences that are listed")
	cmd.Flags().StringVar(&boot.agent, "agent", "", "agent of an overlap or a boot clash")
	cmd.Flags().StringVar(&boot.boot, "boot", "", "its boot")
	cmd.Flags().Uint64Var(&boot.seq, "seq", 0, "a number of the overlap")
	return cmd
}

func conflictsResolve(s *settler, out *format) *cobra.Command {
	var agent, note string
	var all bool
	cmd := &cobra.Command{
		Use: "resolve accept-existing|keep-both [SHA256...]", Short: "Decide about quarantined frames: drop them at their agents, or keep their records under new numbers",
		Long: "accept-existing has agents drop the parked frame: the accepted one stays. keep-both has them send its records under new numbers.\n" +
			"The first decision about a frame stands. With --agent and --all it is about all open conflicts of the agent.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			action, shas := strings.ReplaceAll(args[0], "-", "_"), args[1:]
			if action != "accept_existing" && action != "keep_both" {
				return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("%q: want accept-existing or keep-both", args[0])}
			}
			if all != (len(shas) == 0) || all && agent == "" {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("want the hashes of quarantined frames, or --agent with --all")}
			}
			var done []*resolutionView
			t := table{header: []string{"RESOLUTION", "ACTION", "AGENT", "CONFLICTS", "DECIDED BY", "AT"}}
			err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
				var list conflictsView
				if err := list.read(ctx, c, agent, all); err != nil {
					return err
				}
				of := list.Conflicts
				if !all {
					var err error
					if of, err = list.find(shas); err != nil {
						return err
					}
				}
				// A decision is about one agent, and at most 500 frames of it.
				for len(of) > 0 {
					req := &reconcilerv1.ResolveConflictsRequest{AgentId: of[0].AgentID, Action: action, Note: note}
					n := 0
					for n < len(of) && n < 500 && of[n].AgentID == of[0].AgentID {
						req.Conflicts = append(req.Conflicts, &reconcilerv1.ConflictName{BootId: of[n].BootID, SeqStart: of[n].SeqStart, SeqEnd: of[n].SeqEnd, SubmittedSha256: of[n].SubmittedSHA256})
						n++
					}
					r, err := c.ResolveConflicts(ctx, req)
					if err != nil {
						return err
					}
					v := viewResolution(r.GetResolution())
					done = append(done, v)
					t.rows = append(t.rows, []string{fmt.Sprint(v.Number), v.Action, v.AgentID, fmt.Sprint(n), v.Principal, v.DecidedAt})
					of = of[n:]
				}
				return nil
			})
			if werr := out.write(cmd.OutOrStdout(), done, t); err == nil {
				err = werr
			}
			return err
		},
	}
	cmd.Flags().StringVar(&agent, "agent", "", "only this agent")
	cmd.Flags().BoolVar(&all, "all", false, "all open conflicts of the agent")
	cmd.Flags().StringVar(&note, "note", "", "why, for the record")
	return cmd
}

func conflictsQuarantine(s *settler, out *format, release bool) *cobra.Command {
	var boot, note string
	cmd := &cobra.Command{Use: "quarantine AGENT", Short: "Have collectors take nothing of an agent or a boot until it is released; its batches stay in its queue", Args: cobra.ExactArgs(1)}
	if release {
		cmd.Use, cmd.Short = "release AGENT", "Have collectors take batches of a quarantined agent or boot again"
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var v *resolutionView
		err := s.ask(cmd.Context(), func(ctx context.Context, c reconcilerv1.ReconcilerServiceClient) error {
			r, err := c.SetQuarantine(ctx, &reconcilerv1.SetQuarantineRequest{AgentId: args[0], BootId: boot, Release: release, Note: note})
			v = viewResolution(r.GetResolution())
			return err
		})
		if err != nil {
			return err
		}
		return out.write(cmd.OutOrStdout(), v, table{header: []string{"RESOLUTION", "ACTION", "AGENT", "BOOT", "DECIDED BY", "AT"},
			rows: [][]string{{fmt.Sprint(v.Number), v.Action, v.AgentID, v.BootID, v.Principal, v.DecidedAt}}})
	}
	cmd.Flags().StringVar(&boot, "boot", "", "only this boot")
	cmd.Flags().StringVar(&note, "note", "", "why, for the record")
	return cmd
}
