package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

func auditCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "See what audits of the journal found; begin one"}
	cmd.AddCommand(auditList(out), auditShow(out), auditRun(out))
	return cmd
}

// auditView is an audit as data.
type auditView struct {
	Record     string `json:"record"`
	Scope      string `json:"scope"`
	State      string `json:"state"`
	Began      string `json:"began"`
	Ended      string `json:"ended,omitempty"`
	Spread     string `json:"spread_over,omitempty"`
	Inventory  string `json:"inventory,omitempty"`
	Finished   int    `json:"shards_finished"`
	ShardCount int    `json:"shards_all"`
	Manifests  uint64 `json:"manifests"`
	Conflicts  uint64 `json:"conflicts"`
	Journalled uint64 `json:"journalled"`
	Unusable   uint64 `json:"unusable"`
	Foreign    uint64 `json:"foreign"`
	// Of several regions: copies of batches that another one counts, and what lost to another batch, or nobody has decided.
	Copies      uint64 `json:"copies,omitempty"`
	CopyBytes   uint64 `json:"copy_bytes,omitempty"`
	Quarantined uint64 `json:"quarantined,omitempty"`
	Undecided   uint64 `json:"undecided,omitempty"`
	Digest      string `json:"digest,omitempty"`
	// Shards are those of lmctl audit show.
	Shards []auditShardView `json:"shards,omitempty"`
}

type auditShardView struct {
	Shard     int    `json:"shard"`
	From      string `json:"from_agent"`
	By        string `json:"by,omitempty"`
	State     string `json:"state"`
	Due       string `json:"due"`
	Moved     string `json:"moved,omitempty"`
	Cursor    string `json:"cursor,omitempty"`
	Manifests uint64 `json:"manifests"`
	Conflicts uint64 `json:"conflicts"`
	Missing   uint64 `json:"journalled"`
	Unusable  uint64 `json:"unusable"`
}

func unixTime(s int64) string {
	if s == 0 {
		return ""
	}
	return time.Unix(s, 0).UTC().Format(time.RFC3339)
}

// viewAudit reads the shards of an audit; its counts are their sums, also before it has finished.
func viewAudit(ctx context.Context, s objstore.Getter, r *audit.Stored) (auditView, error) {
	v := auditView{Record: r.Key, Scope: r.Scope, State: "under way", Began: unixTime(r.StartedAt), Ended: unixTime(r.FinishedAt), ShardCount: r.ShardCount(), Inventory: r.Inventory}
	if r.Spread > 0 {
		v.Spread = (time.Duration(r.Spread) * time.Second).String()
	}
	if r.Finished() {
		v.State, v.Digest, v.Finished = "finished", r.Digest.String(), v.ShardCount
		v.Manifests, v.Conflicts, v.Journalled, v.Unusable, v.Foreign = r.Manifests, r.Conflicts, r.Journalled, r.Unusable, r.Foreign
		v.regions(&r.Record)
	}
	shards, err := audit.Progress(ctx, s, r)
	if err != nil {
		return v, err
	}
	for i := range shards {
		p := &shards[i]
		from, _ := r.Agents(i)
		sv := auditShardView{Shard: i, From: from, By: p.By, State: "waits", Due: unixTime(r.DueAt(i).Unix()), Moved: unixTime(p.UpdatedAt),
			Cursor: p.Cursor, Manifests: p.Manifests, Conflicts: p.Conflicts, Missing: p.Journalled, Unusable: p.Unusable}
		switch {
		case p.Finished():
			sv.State = "finished"
		case p.StartedAt > 0:
			sv.State = "under way"
		}
		v.Shards = append(v.Shards, sv)
		if r.Finished() {
			continue
		}
		if p.Finished() {
			v.Finished++
		}
		v.Manifests, v.Conflicts, v.Journalled = v.Manifests+p.Manifests, v.Conflicts+p.Conflicts, v.Journalled+p.Journalled
		v.Unusable, v.Foreign = v.Unusable+p.Unusable, v.Foreign+p.Foreign
		v.regions(&p.Record)
	}
	return v, nil
}

// regions adds what an audit, or a shard, found that is of no matter where there are no regions.
func (v *auditView) regions(r *audit.Record) {
	v.Copies, v.CopyBytes, v.Quarantined, v.Undecided = v.Copies+r.Copies, v.CopyBytes+r.CopyBytes, v.Quarantined+r.Quarantined, v.Undecided+r.Undecided
}

func auditTable(views []auditView) table {
	t := table{header: []string{"RECORD", "STATE", "BEGAN", "ENDED", "SHARDS", "MANIFESTS", "CONFLICTS", "JOURNALLED", "UNUSABLE", "FOREIGN"}}
	several := slices.ContainsFunc(views, func(v auditView) bool { return v.Copies+v.Quarantined+v.Undecided > 0 })
	if several {
		t.header = append(t.header, "COPIES", "QUARANTINED", "UNDECIDED")
	}
	for _, v := range views {
		t.rows = append(t.rows, []string{v.Record, v.State, v.Began, orDash(v.Ended), fmt.Sprintf("%d/%d", v.Finished, v.ShardCount), fmt.Sprint(v.Manifests),
			fmt.Sprint(v.Conflicts), fmt.Sprint(v.Journalled), fmt.Sprint(v.Unusable), fmt.Sprint(v.Foreign)})
		if several {
			last := len(t.rows) - 1
			t.rows[last] = append(t.rows[last], fmt.Sprint(v.Copies), fmt.Sprint(v.Quarantined), fmt.Sprint(v.Undecided))
		}
	}
	return t
}

func auditShardTable(v auditView) table {
	t := table{header: []string{"SHARD", "FROM AGENT", "STATE", "DUE", "BY", "MOVED", "MANIFESTS", "CONFLICTS", "JOURNALLED", "UNUSABLE"}}
	for _, s := range v.Shards {
		t.rows = append(t.rows, []string{fmt.Sprint(s.Shard), orDash(s.From), s.State, s.Due, orDash(s.By), orDash(s.Moved),
			fmt.Sprint(s.Manifests), fmt.Sprint(s.Conflicts), fmt.Sprint(s.Missing), fmt.Sprint(s.Unusable)})
	}
	return t
}

// auditStore is what the commands need of the store.
type auditStore interface {
	objstore.Getter
	objstore.Lister
}

// listAudits are the newest audits of all scopes, the newest first.
func listAudits(ctx context.Context, s auditStore, limit int) ([]auditView, error) {
	var all []audit.Stored
	for _, scope := range []string{audit.Full, audit.News, audit.Derived} {
		h, err := audit.History(ctx, s, scope, limit)
		if err != nil {
			return nil, err
		}
		all = append(all, h...)
	}
	slices.SortStableFunc(all, func(a, b audit.Stored) int { return cmp.Compare(b.StartedAt, a.StartedAt) })
	views := []auditView{}
	for i := range all[:min(limit, len(all))] {
		v, err := viewAudit(ctx, s, &all[i])
		if err != nil {
			return nil, err
		}
		v.Shards = nil
		views = append(views, v)
	}
	return views, nil
}

func auditList(out *format) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "list URL",
		Short: "The latest audits, and what they found",
		Long: "Audits compare what was accepted with what the journal has. JOURNALLED stood in no run and got an entry; UNUSABLE\n" +
			"can't be read or are of another authority, and have repair records; FOREIGN are keys of no known form. Of an\n" +
			"audit of derived keys, MANIFESTS are keys and JOURNALLED those that were missing.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if limit < 1 {
				return usageError("--limit: must be at least 1")
			}
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			// A wrong URL would be an authority whose audits found nothing.
			if _, err := accept.ReadAuthority(cmd.Context(), store); err != nil {
				return reached(err)
			}
			views, err := listAudits(cmd.Context(), store, limit)
			if err != nil {
				return reached(err)
			}
			return out.write(cmd.OutOrStdout(), views, auditTable(views))
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "most audits")
	return cmd
}

// showAudit reads one audit, or the newest of all.
func showAudit(ctx context.Context, s auditStore, key string) (auditView, error) {
	if key == "" {
		views, err := listAudits(ctx, s, 1)
		if err != nil {
			return auditView{}, err
		}
		if len(views) == 0 {
			return auditView{}, &cli.ExitError{Code: cli.ExitFailed, Err: errors.New("nobody has begun an audit of this bucket")}
		}
		key = views[0].Record
	}
	if _, _, _, err := layout.ParseAudit(key); err != nil {
		return auditView{}, usageError("RECORD: %w", err)
	}
	r, err := audit.Read(ctx, s, key)
	if errors.Is(err, objstore.ErrNotFound) {
		return auditView{}, &cli.ExitError{Code: cli.ExitFailed, Err: fmt.Errorf("there is no audit %s", key)}
	}
	if err != nil {
		return auditView{}, err
	}
	return viewAudit(ctx, s, &r)
}

func auditShow(out *format) *cobra.Command {
	return &cobra.Command{
		Use:   "show URL [RECORD]",
		Short: "How far each shard of an audit is; the newest audit by default",
		Long:  "RECORD is the key that lmctl audit list shows.\n\n" + bucketHelp,
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if _, err := accept.ReadAuthority(cmd.Context(), store); err != nil {
				return reached(err)
			}
			v, err := showAudit(cmd.Context(), store, append(args, "")[1])
			if err != nil {
				return reached(err)
			}
			if out.String() == "table" {
				if err := out.write(cmd.OutOrStdout(), nil, auditTable([]auditView{v})); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout())
			}
			return out.write(cmd.OutOrStdout(), v, auditShardTable(v))
		},
	}
}

// auditFlags are those of lmctl audit run.
type auditFlags struct {
	news, detach bool
	spread       time.Duration
	shards       int
}

// beginAudit creates the record of an audit.
func beginAudit(ctx context.Context, s audit.Store, f auditFlags) (audit.Stored, error) {
	switch {
	case f.spread < 0 || f.shards < 1 || f.shards > audit.MaxShards:
		return audit.Stored{}, usageError("--spread must not be negative, and --shards must be 1 to %d", audit.MaxShards)
	case f.news && f.spread > 0:
		return audit.Stored{}, usageError("--spread has no effect on an audit of news")
	}
	// In a bucket that is none of ours, or a replica, no reconciler would ever take it.
	authority, err := accept.ReadAuthority(ctx, s)
	if err != nil {
		return audit.Stored{}, err
	}
	a := &audit.Auditor{Store: s, Rand: rand.Reader, Authority: authority.AuthorityID, By: "lmctl", Shards: f.shards}
	if f.news {
		return a.BeginNews(ctx)
	}
	return a.Begin(ctx, f.spread)
}

// waitForAudit follows the audit until it has finished.
func waitForAudit(ctx context.Context, s auditStore, key string, poll time.Duration, report func(string)) (auditView, error) {
	last := ""
	for {
		v, err := showAudit(ctx, s, key)
		if ctx.Err() != nil {
			return v, fmt.Errorf("the audit %s continues without this command: %w", key, ctx.Err())
		}
		if err != nil || v.State == "finished" {
			return v, err
		}
		if line := fmt.Sprintf("%d of %d shards, %d manifests so far", v.Finished, v.ShardCount, v.Manifests); line != last {
			last = line
			report(line)
		}
		_ = run.WallClock{}.Sleep(ctx, poll) // the next round finds that ctx has ended
	}
}

func auditRun(out *format) *cobra.Command {
	var f auditFlags
	cmd := &cobra.Command{
		Use:   "run URL",
		Short: "Begin an audit, which the reconcilers do",
		Long: "Creates the record of an audit, which begins it: each reconciler takes shards of it within three minutes, at its rate\n" +
			"(audit.rate). Without --news it is a full audit, which compares every manifest with the journal. This\n" +
			"command waits until it has finished; when it is interrupted, or with --detach, the audit continues, and lmctl audit\n" +
			"show has its progress. Exits 3 when manifests can't be used.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := beginAudit(cmd.Context(), store, f)
			if err != nil {
				return reached(err)
			}
			report := func(s string) { fmt.Fprintln(cmd.ErrOrStderr(), s) }
			report("the audit " + r.Key + " waits for a reconciler")
			var v auditView
			if f.detach {
				v, err = viewAudit(cmd.Context(), store, &r)
			} else {
				v, err = waitForAudit(cmd.Context(), store, r.Key, 2*time.Second, report)
			}
			if err != nil {
				return reached(err)
			}
			if err := out.write(cmd.OutOrStdout(), v, auditTable([]auditView{v})); err != nil {
				return err
			}
			if v.Unusable > 0 {
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("%d manifests can't be used; repair/v1/ has a record of each", v.Unusable)}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&f.news, "news", false, "audit what is new, as each reconciler does every audit.interval")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "do not wait")
	cmd.Flags().DurationVar(&f.spread, "spread", 0, "time over which the shards begin")
	cmd.Flags().IntVar(&f.shards, "shards", 16, "most shards")
	return cmd
}
