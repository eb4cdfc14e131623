package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	core "lightmetrics.dev/lightmetrics/internal/coordination/claims" // lmctl has a function of the package's name
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// traceTimeout bounds a trace, which reads files of the journals of all regions.
const traceTimeout = 5 * time.Minute

// maxTrace is above the bytes of as many records as all regions may have, 16 times trace.MaxRecords, with the longest names.
const maxTrace = 64 << 20

func identityCommand(out *format) *cobra.Command {
	c := &identityAPI{}
	cmd := &cobra.Command{Use: "identity", Short: "What the identity linearizer and the regions have of a batch"}
	cmd.AddCommand(identityShow(out, c), identityTrace(out, c))
	c.flags(cmd)
	return cmd
}

// recordView is a claim, or a record in a bucket.
type recordView struct {
	Where    string `json:"where"`
	Kind     string `json:"kind"`
	Outcome  string `json:"outcome,omitempty"`
	SeqStart uint64 `json:"seq_start"`
	SeqEnd   uint64 `json:"seq_end"`
	Hash     string `json:"frame_sha256,omitempty"`
	Epoch    uint64 `json:"epoch,omitempty"`
	Fence    uint64 `json:"fence,omitempty"`
	Home     string `json:"home_region,omitempty"`
	At       string `json:"at,omitempty"`
	Key      string `json:"key,omitempty"`
	Error    string `json:"error,omitempty"`

	at int64
}

// searchView is what was searched of the journal of a region.
type searchView struct {
	Region   string `json:"region"`
	From     string `json:"from,omitempty"`
	To       string `json:"to,omitempty"`
	Files    uint32 `json:"files"`
	Segments uint32 `json:"segments"`
	Error    string `json:"error,omitempty"`
}

type traceView struct {
	Records  []recordView      `json:"records"`
	Journals []searchView      `json:"journals"`
	Unread   map[string]string `json:"unread,omitempty"`
}

var recordHeader = []string{"AT", "WHERE", "WHAT", "SEQUENCE", "SHA-256", "STAMP", "HOME"}

func (v recordView) row() []string {
	stamp := "-"
	switch {
	case v.Fence > 0:
		stamp = fmt.Sprintf("%d.%d", v.Epoch, v.Fence)
	case v.Epoch > 0: // records of the journal have no fence
		stamp = fmt.Sprint(v.Epoch)
	}
	what := v.Kind
	if v.Outcome != "" {
		what += " " + v.Outcome
	}
	if v.Error != "" {
		what += ": " + v.Error
	}
	at := "-"
	if v.at != 0 {
		at = time.Unix(0, v.at).UTC().Format("2006-01-02T15:04:05.000Z07:00")
	}
	return []string{at, v.Where, what, fmt.Sprintf("%d-%d", v.SeqStart, v.SeqEnd), orDash(v.Hash[:min(len(v.Hash), 12)]), stamp, orDash(v.Home)}
}

// record is as much of it as its place in the order depends on.
func (v recordView) record() trace.Record {
	return trace.Record{
		Kind: v.Kind, Stamp: identity.Stamp{Epoch: v.Epoch, Fence: v.Fence}, Region: core.Region(v.Where), Key: v.Key, At: v.at,
		Identity: identity.Batch{SeqStart: v.SeqStart, SeqEnd: v.SeqEnd},
	}
}

func recordRows(views []recordView) (rows [][]string) {
	for _, v := range views {
		rows = append(rows, v.row())
	}
	return rows
}

// identityFlags name sequence numbers of a boot.
type identityFlags struct{ agent, boot, seq string }

func (f *identityFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.agent, "agent", "", "agent id")
	cmd.Flags().StringVar(&f.boot, "boot", "", "boot id")
	cmd.Flags().StringVar(&f.seq, "seq", "", "sequence number, or first-last")
	for _, name := range []string{"agent", "boot", "seq"} {
		_ = cmd.MarkFlagRequired(name)
	}
}

func identityShow(out *format, c *identityAPI) *cobra.Command {
	var f identityFlags
	cmd := &cobra.Command{
		Use:   "show --agent AGENT --boot BOOT --seq FIRST[-LAST]",
		Short: "Show the claims and folded spans that meet sequence numbers of a boot",
		Long: "Shows what the identity linearizer decides by: claims in etcd with their state, stamp and home, and runs of sequence numbers that\n" +
			"are folded. What the buckets have of them shows \"lmctl identity trace\".",
		Example: "  lmctl identity show --agent host-1 --boot 0198f3 --seq 1-100",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		from, to, err := seqRange(f.seq)
		if err != nil {
			return &cli.ExitError{Code: cli.ExitUsage, Err: err}
		}
		views := []recordView{}
		err = c.ask(cmd.Context(), func(ctx context.Context, cl coordinatorv1.IdentityServiceClient) error {
			r, err := cl.ListClaims(ctx, &coordinatorv1.ListClaimsRequest{AgentId: f.agent, BootId: f.boot, SeqStart: from, SeqEnd: to})
			views = claimViews(r)
			return err
		})
		if err != nil {
			return err
		}
		if err := out.write(cmd.OutOrStdout(), views, table{header: recordHeader, rows: recordRows(views)}); err != nil {
			return err
		}
		if out.String() == "table" && len(views) == 0 {
			fmt.Fprintf(cmd.ErrOrStderr(), "nothing is known of these numbers of agent %q, boot %q: no claim and no fold has one. \"lmctl identity trace\" reads the buckets\n", f.agent, f.boot)
		}
		return nil
	}
	f.add(cmd)
	return cmd
}

func identityTrace(out *format, c *identityAPI) *cobra.Command {
	var f identityFlags
	var after time.Duration
	cmd := &cobra.Command{
		Use:   "trace --agent AGENT --boot BOOT --seq FIRST[-LAST]",
		Short: "Show every record of sequence numbers of a boot in etcd and in every region, in the order in which they happened; exits 3 where one can't be read",
		Long: "Shows claims of etcd, and of every region's bucket manifests, affirmations, quarantine records, entries of the journal and folds, of all\n" +
			"identities that share a sequence number with the range. They are in the order of their times, by the clocks of who wrote them; of one\n" +
			"time, in that of their stamps. Folds have no time, and are last.\n\n" +
			"Entries of the journal are looked for in what no reconciler has folded yet, and in the folded files of the times that the other records\n" +
			"name and of --journal-after behind them. A sender that came to another region later than that is found with a longer one. Where a\n" +
			"part of a journal could not be searched it says so, and exits 3.",
		Example: "  lmctl identity trace --agent host-1 --boot 0198f3 --seq 1-100",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		from, to, err := seqRange(f.seq)
		if err != nil {
			return &cli.ExitError{Code: cli.ExitUsage, Err: err}
		}
		if after <= 0 {
			return usageError("--journal-after %s: want more than 0", after)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), traceTimeout)
		defer cancel()
		var v traceView
		err = c.over(func(conn grpc.ClientConnInterface) error {
			r, err := coordinatorv1.NewIdentityServiceClient(conn).TraceIdentity(ctx, &coordinatorv1.TraceIdentityRequest{
				AgentId: f.agent, BootId: f.boot, SeqStart: from, SeqEnd: to, JournalAfterNs: uint64(after),
			}, grpc.MaxCallRecvMsgSize(maxTrace))
			v = viewTrace(r)
			return err
		})
		if err != nil {
			return err
		}
		if err := out.write(cmd.OutOrStdout(), v, table{header: recordHeader, rows: recordRows(v.Records)}); err != nil {
			return err
		}
		if out.String() == "table" {
			if len(v.Records) == 0 {
				fmt.Fprintf(cmd.ErrOrStderr(), "no record was found of these numbers of agent %q, boot %q\n", f.agent, f.boot)
			}
			for _, j := range v.Journals {
				fmt.Fprintln(cmd.ErrOrStderr(), j)
			}
		}
		if bad := v.unread(); len(bad) > 0 {
			return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("not everything could be read: " + strings.Join(bad, "; "))}
		}
		return nil
	}
	f.add(cmd)
	cmd.Flags().DurationVar(&after, "journal-after", 15*time.Minute, "how long after each known time the journals are searched")
	return cmd
}

// viewTrace puts claims and records into one order. Folds are shown as each region has them, which says more than the spans of
// etcd's answer.
func viewTrace(r *coordinatorv1.TraceIdentityResponse) traceView {
	v := traceView{Records: []recordView{}, Journals: []searchView{}, Unread: r.GetUnread()}
	for _, c := range claimViews(r.GetClaims()) {
		if c.Kind != kindFolded {
			v.Records = append(v.Records, c)
		}
	}
	v.Records = append(v.Records, recordViews(r.GetRecords())...)
	// The records are in order. A claim precedes what was written under it.
	slices.SortStableFunc(v.Records, func(a, b recordView) int {
		return trace.Compare(a.record(), b.record())
	})
	for _, j := range r.GetJournals() {
		one := searchView{Region: j.GetRegion(), Files: j.GetFiles(), Segments: j.GetSegments(), Error: j.GetError()}
		if j.GetToUnixNs() != 0 {
			one.From, one.To = exact(j.GetFromUnixNs()), exact(j.GetToUnixNs())
		}
		v.Journals = append(v.Journals, one)
	}
	return v
}

// unread is what could not be read, or was not searched.
func (v traceView) unread() (bad []string) {
	for _, n := range slices.Sorted(maps.Keys(v.Unread)) {
		bad = append(bad, n+": "+v.Unread[n])
	}
	for _, r := range v.Records {
		if r.Error != "" {
			bad = append(bad, r.Key+": "+r.Error)
		}
	}
	for _, j := range v.Journals {
		if j.Error != "" {
			bad = append(bad, "journal of "+j.Region+": "+j.Error)
		}
	}
	return bad
}

func (j searchView) String() string {
	s := fmt.Sprintf("journal of %s: %d segments that are not folded", j.Region, j.Segments)
	if j.From == "" {
		return s + ", and no folded file: no record names a time"
	}
	return s + fmt.Sprintf(", %d folded files between %s and %s", j.Files, j.From, j.To)
}

// seqRange reads "7" or "1-100".
func seqRange(s string) (from, to uint64, err error) {
	a, b, both := strings.Cut(s, "-")
	if !both {
		b = a
	}
	from, err = strconv.ParseUint(a, 10, 64)
	if err == nil {
		to, err = strconv.ParseUint(b, 10, 64)
	}
	if err != nil || from > to {
		return 0, 0, fmt.Errorf("--seq %q: want a number, or first-last", s)
	}
	return from, to, nil
}

// kindFolded is a span of folded sequence numbers, as the linearizer knows it.
const kindFolded = "FOLDED"

func claimViews(r *coordinatorv1.ListClaimsResponse) []recordView {
	views := []recordView{}
	for _, c := range r.GetClaims() {
		kind := strings.TrimPrefix(c.GetState().String(), "CLAIM_STATE_")
		if c.GetRecovered() {
			kind += ", recovered"
		}
		if c.GetBound() {
			kind += ", bound"
		}
		changed := max(c.GetDurableAtUnixNs(), c.GetClaimedAtUnixNs())
		views = append(views, recordView{
			Where: "etcd", Kind: kind, SeqStart: c.GetIdentity().GetSeqStart(), SeqEnd: c.GetIdentity().GetSeqEnd(), Hash: hex.EncodeToString(c.GetFrameSha256()),
			Epoch: c.GetEpoch(), Fence: c.GetFence(), Home: c.GetHomeRegion(), At: exactOrNone(changed), at: changed,
		})
	}
	for _, s := range r.GetSpans() {
		views = append(views, recordView{Where: "etcd", Kind: kindFolded, SeqStart: s.GetSeqStart(), SeqEnd: s.GetSeqEnd(), Home: s.GetHomeRegion()})
	}
	return views
}

func recordViews(rs []*coordinatorv1.IdentityRecord) []recordView {
	views := []recordView{}
	for _, r := range rs {
		views = append(views, recordView{
			Where: r.GetRegion(), Kind: r.GetKind(), SeqStart: r.GetIdentity().GetSeqStart(), SeqEnd: r.GetIdentity().GetSeqEnd(), Hash: hex.EncodeToString(r.GetFrameSha256()),
			Epoch: r.GetEpoch(), Fence: r.GetFence(), Home: r.GetHomeRegion(), Outcome: r.GetOutcome(), At: exactOrNone(r.GetAtUnixNs()), at: r.GetAtUnixNs(),
			Key: r.GetKey(), Error: r.GetError(),
		})
	}
	return views
}

// exactOrNone is a time with all its digits; empty where there is none.
func exactOrNone(ns int64) string {
	if ns == 0 {
		return ""
	}
	return exact(ns)
}
