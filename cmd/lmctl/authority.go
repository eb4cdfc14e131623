package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

func authorityCommand(out *format) *cobra.Command {
	cmd := &cobra.Command{Use: "authority", Short: "The acceptance authority: one bucket and one prefix"}
	cmd.AddCommand(authorityShowCommand(out), authorityMoveCommand(out))
	return cmd
}

// authorityView is the authority record as data.
type authorityView struct {
	Key         string    `json:"key"`
	AuthorityID string    `json:"authority_id"`
	Bound       bool      `json:"bound"`
	Endpoint    string    `json:"endpoint"`
	Region      string    `json:"region"`
	Bucket      string    `json:"bucket"`
	Prefix      string    `json:"prefix"`
	CreatedAt   time.Time `json:"created_at"`
	BoundAt     time.Time `json:"bound_at"`
	WrittenAt   time.Time `json:"written_at"`
	Renamed     []string  `json:"renamed"`
	Reason      string    `json:"reason"`
	Problem     string    `json:"problem"`
}

func viewAuthority(a accept.Authority) authorityView {
	at := func(ns int64) (t time.Time) {
		if ns != 0 {
			t = time.Unix(0, ns).UTC()
		}
		return t
	}
	v := authorityView{
		Key: layout.AuthorityKey, AuthorityID: a.AuthorityID, Bound: a.Bound(), Endpoint: a.Place.Endpoint, Region: a.Place.Region,
		Bucket: a.Place.Bucket, Prefix: a.Place.Prefix, CreatedAt: at(a.CreatedAt), BoundAt: at(a.BoundAt), WrittenAt: a.WrittenAt.UTC(),
		Renamed: append([]string{}, a.Renamed...),
	}
	if a.Problem != nil {
		v.Reason, v.Problem = string(a.Problem.Reason), a.Problem.Error()
	}
	return v
}

func (v authorityView) table() table {
	day := func(t time.Time) string {
		if t.IsZero() {
			return "not known"
		}
		return t.Format(time.RFC3339)
	}
	t := table{header: []string{"WHAT", "VALUE"}, rows: [][]string{{"key", v.Key}, {"authority", v.AuthorityID}}}
	if !v.Bound {
		t.rows = append(t.rows, []string{"bound to", "nothing: the next collector that starts binds it to its bucket"})
	} else {
		t.rows = append(t.rows, []string{"bound to", objstore.Place{Endpoint: v.Endpoint, Region: v.Region, Bucket: v.Bucket, Prefix: v.Prefix}.String()},
			[]string{"created", day(v.CreatedAt)}, []string{"bound", day(v.BoundAt)})
	}
	t.rows = append(t.rows, []string{"written", day(v.WrittenAt)})
	if len(v.Renamed) > 0 {
		t.rows = append(t.rows, []string{"called otherwise here", strings.Join(v.Renamed, ", ")})
	}
	if v.Problem != "" {
		t.rows = append(t.rows, []string{"problem", v.Reason + ": " + v.Problem})
	}
	return t
}

// inspectAuthority reads the record; that there is none is a finding about the bucket and no failure.
func inspectAuthority(ctx context.Context, store objstore.Store) (accept.Authority, error) {
	a, err := accept.InspectAuthority(ctx, store)
	if errors.Is(err, accept.ErrNoAuthority) {
		return a, &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("the bucket is no acceptance authority yet: no collector ever started on it")}
	}
	return a, reached(err)
}

func authorityShowCommand(out *format) *cobra.Command {
	return &cobra.Command{
		Use:   "show URL",
		Short: "Print the bucket's id object, and whether this bucket is the authority",
		Long: "Prints the id object that every service checks: the authority's id, and the bucket that it is bound to.\n" +
			"Exits 3 where this bucket is not that one: a copy, a replica, or one that the authority is to be moved to.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			a, err := inspectAuthority(cmd.Context(), store)
			if err != nil {
				return err
			}
			v := viewAuthority(a)
			if err := out.write(cmd.OutOrStdout(), v, v.table()); err != nil {
				return err
			}
			if a.Problem != nil {
				return &cli.ExitError{Code: cli.ExitFindings, Err: a.Problem}
			}
			return nil
		},
	}
}

func authorityMoveCommand(out *format) *cobra.Command {
	var dry, yes bool
	cmd := &cobra.Command{
		Use:   "move URL",
		Short: "Make this bucket the authority in place of the one that its id object is bound to",
		Long: "Binds the id object that was copied or replicated into this bucket to this bucket, so that collectors start on it.\n" +
			"Nothing may accept at the old place any more: two buckets that both take batches have two truths of one name,\n" +
			"and nothing can merge them. docs/guide/authority.md has the steps.\n\n" +
			"A copy need not have everything that its original had, so journal/v1/begin.json, audit/ and the ledgers' checkpoint\n" +
			"are deleted in it, and rollup/v1/progress/ in a replica: the first full audit, and the workers, write them again.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// No default: neither is what somebody expects who forgot to say it.
			if dry == yes {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("say either --dry-run or --yes")}
			}
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return moveAuthority(cmd, out, store, dry)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only print what would be changed")
	cmd.Flags().BoolVar(&yes, "yes", false, "change it: nothing accepts at the old place any more")
	return cmd
}

// authorityMoveView is a move as data.
type authorityMoveView struct {
	DryRun bool          `json:"dry_run"`
	Moved  bool          `json:"moved"`
	From   authorityView `json:"from"`
	To     authorityView `json:"to"`
	// Deleted are the objects that say of the original what need not be so of a copy.
	Deleted []string `json:"deleted"`
}

// claims are the prefixes of what says that everything was seen: the journal's completeness, audits, the ledgers'
// checkpoint, and of a replica, whose objects came in no order, how far blocks are.
func claims(from accept.Authority) []string {
	if from.Problem == nil {
		return nil // this bucket is the authority, perhaps under another name
	}
	out := []string{layout.JournalBeginKey, layout.AuditPrefix, layout.LedgersKey, layout.LedgersPrefix}
	if p := (*accept.AuthorityError)(nil); errors.As(from.Problem, &p) && p.Reason == accept.AuthorityReplica {
		out = append(out, layout.RollupProgressPrefix)
	}
	return out
}

// deleteClaims deletes them, or with dry only lists them.
func deleteClaims(ctx context.Context, store objstore.Store, from accept.Authority, dry bool) ([]string, error) {
	keys := []string{}
	for _, prefix := range claims(from) {
		for o, err := range objstore.List(ctx, store, objstore.ListOptions{Prefix: prefix}) {
			if err != nil {
				return keys, err
			}
			keys = append(keys, o.Key)
		}
	}
	if dry {
		return keys, nil
	}
	for _, key := range keys {
		if err := store.Delete(ctx, key); err != nil {
			return keys, fmt.Errorf("delete %q, which need not be so of a copy: %w", key, err)
		}
	}
	return keys, nil
}

func moveAuthority(cmd *cobra.Command, out *format, store objstore.Store, dry bool) error {
	ctx := cmd.Context()
	from, err := inspectAuthority(ctx, store)
	if err != nil {
		return err
	}
	to := from
	to.Place, to.Renamed, to.Problem = from.At, nil, nil
	// Before the move: no service reads a bucket that is not the authority.
	deleted, err := deleteClaims(ctx, store, from, dry)
	if err != nil {
		return reached(err)
	}
	if !dry {
		if to, err = accept.MoveAuthority(ctx, store, from); err != nil {
			return reached(err)
		}
	}
	v := authorityMoveView{DryRun: dry, Moved: !dry, From: viewAuthority(from), To: viewAuthority(to), Deleted: deleted}
	what := "is bound to"
	if dry {
		what = "would be bound to"
	}
	was := "nothing"
	if from.Bound() {
		was = from.Place.String()
	}
	t := table{header: []string{"WHAT", "VALUE"}, rows: [][]string{{"authority", from.AuthorityID}, {"was bound to", was}}}
	if v.From.Problem != "" {
		t.rows = append(t.rows, []string{"problem", v.From.Reason})
	}
	t.rows = append(t.rows, []string{what, to.Place.String()}, []string{"claims of the original deleted", fmt.Sprint(len(deleted))})
	return out.write(cmd.OutOrStdout(), v, t)
}
