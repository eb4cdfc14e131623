package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/helps"
	rolled "lightmetrics.dev/lightmetrics/internal/rollups/progress"
)

// fsckView is the report as data. Manifests are all of them, also those that journal.unasked counts.
type fsckView struct {
	AuthorityID string `json:"authority_id"`
	// Copy is why this bucket is not the authority: an accept.AuthorityReason, or empty.
	Copy        string         `json:"copy,omitempty"`
	Manifests   uint64         `json:"manifests"`
	Quarantined uint64         `json:"quarantined"`
	Records     uint64         `json:"records"`
	Samples     uint64         `json:"samples"`
	FrameBytes  uint64         `json:"frame_bytes"`
	Removed     uint64         `json:"removed_by_retention"`
	Journal     journalChecked `json:"journal"`
	Boots       int            `json:"boots"`
	Found       uint64         `json:"found"`
	Findings    []findingView  `json:"findings"`
}

// journalChecked is what is in the journal.
type journalChecked struct {
	Complete      bool   `json:"complete"`
	Entries       uint64 `json:"entries"`
	NotJournalled uint64 `json:"not_journalled"`
	Unasked       uint64 `json:"unasked,omitempty"`
	NotCompared   bool   `json:"not_compared,omitempty"`
}

func (j journalChecked) rows() [][]string {
	rows := [][]string{{"journal's entries", fmt.Sprint(j.Entries)}, {"batches that the journal does not have yet", fmt.Sprint(j.NotJournalled)}}
	if j.Unasked > 0 {
		rows = append(rows, []string{"manifests that this region does not count", fmt.Sprint(j.Unasked) + ": copies of batches that another region counts, losers, or undecided; lmctl audit show counts them"})
	}
	if !j.Complete {
		rows = append(rows, []string{"journal", "not complete: no full audit has finished since it began"})
	}
	if j.NotCompared {
		rows = append(rows, []string{"journal", "not compared with the batches: they are too many"})
	}
	return rows
}

type findingView struct {
	Problem string `json:"problem"`
	Key     string `json:"key"`
	Detail  string `json:"detail"`
}

// errNoAuthority: a misspelled prefix must not look like a healthy bucket.
var errNoAuthority = errors.New("no acceptance authority at this prefix: there is no id object (" + layout.AuthorityKey + ") and no batch")

func fsckCommand(out *format) *cobra.Command {
	var authority string
	var derived bool
	cmd := &cobra.Command{
		Use:   "fsck URL",
		Short: "Check that every accepted batch is in the bucket, byte for byte",
		Long: "Reads every identity manifest, quarantine record and frame of a bucket, and all of the journal, and trusts nothing else.\n" +
			"Frames that lmctl retention removed, and wrote down, are counted and no finding. A batch that the journal does not\n" +
			"have is one after three days: until then an audit of the reconciler may enter it. In a region of several such a batch\n" +
			"may be another region's: its frame is checked, and it is counted apart.\n" +
			"Exits 3 when something does not hold.\n\n" + bucketHelp,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := openBucket(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			r, err := fsck.Run(cmd.Context(), store, fsck.Options{
				AuthorityID: authority, DerivedKeys: derived,
				Positions: func(ctx context.Context) (map[string]journal.Positions, error) { return shardPositions(ctx, store) },
			})
			if err != nil {
				return reached(err)
			}
			// The id object is looked up last: a collector that starts on a new bucket writes it before
			// its first batch, so an absent one is meaningful only together with what was found. A copy
			// of the authority is checked like the authority, so what it is bound to is no finding.
			a, err := accept.InspectAuthority(cmd.Context(), store)
			if errors.Is(err, accept.ErrNoAuthority) {
				// An empty prefix is most likely a misspelled one. With batches, a missing id object is
				// damage.
				if r.Manifests == 0 && r.Quarantined == 0 && r.Found == 0 {
					return &cli.ExitError{Code: cli.ExitFailed, Err: errNoAuthority}
				}
				r.Found++
				r.Findings = append(r.Findings, fsck.Finding{Problem: "AUTHORITY_MISSING", Key: layout.AuthorityKey, Detail: "there are batches, and no id object"})
			} else if record.Opaque(err) {
				r.Found++
				r.Findings = append(r.Findings, fsck.Finding{Problem: "AUTHORITY_UNREADABLE", Key: layout.AuthorityKey, Detail: err.Error()})
			} else if err != nil {
				return reached(err)
			}
			bad, err := badHelps(cmd.Context(), store, a.AuthorityID)
			if err != nil {
				return reached(err)
			}
			r.Found += uint64(len(bad))
			r.Findings = append(r.Findings, bad...)
			v := fsckView{AuthorityID: a.AuthorityID, Manifests: r.Manifests, Quarantined: r.Quarantined, Records: r.Records, Samples: r.Samples,
				FrameBytes: r.FrameBytes, Removed: r.Removed, Boots: len(r.Ledgers), Journal: journalChecked(r.Journal), Found: r.Found, Findings: []findingView{}}
			t := table{header: []string{"WHAT", "COUNT"}, rows: [][]string{
				{"accepted batches", fmt.Sprint(r.Manifests - r.Journal.Unasked)}, {"records", fmt.Sprint(r.Records)},
				{"samples", fmt.Sprint(r.Samples)}, {"frame bytes", fmt.Sprint(r.FrameBytes)},
				{"frames removed by retention", fmt.Sprint(r.Removed)},
				{"agents' boots", fmt.Sprint(len(r.Ledgers))}, {"quarantined frames", fmt.Sprint(r.Quarantined)},
			}}
			t.rows = append(append(t.rows, v.Journal.rows()...), []string{"findings", fmt.Sprint(r.Found)})
			if a.Problem != nil {
				v.Copy = string(a.Problem.Reason)
				t.rows = append(t.rows, []string{"not the authority", a.Problem.Error()})
			}
			for _, f := range r.Findings {
				v.Findings = append(v.Findings, findingView{string(f.Problem), f.Key, f.Detail})
				t.rows = append(t.rows, []string{string(f.Problem), f.Key + ": " + f.Detail})
			}
			if err := out.write(cmd.OutOrStdout(), v, t); err != nil {
				return err
			}
			if !r.Healthy() {
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("the bucket is not whole")}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&derived, "derived", false, "derived keys that are missing are findings: for reconcilers with derived: objects")
	cmd.Flags().StringVar(&authority, "authority", "", "authority id that manifests must carry")
	return cmd
}

// badHelps finds the record of the helps of metrics that can't be used. Its texts are compared with nothing: newer ones may be on
// their way.
func badHelps(ctx context.Context, store objstore.Store, authority string) ([]fsck.Finding, error) {
	_, _, err := helps.Read(ctx, store, authority)
	switch {
	case err == nil || errors.Is(err, objstore.ErrNotFound) || authority == "": // without an authority there is another finding
		return nil, nil
	case errors.Is(err, record.ErrNewerVersion):
		return []fsck.Finding{{Problem: fsck.NewerRecord, Key: layout.RollupHelpsKey, Detail: err.Error()}}, nil
	case record.Unreadable(err):
		return []fsck.Finding{{Problem: "BAD_HELPS", Key: layout.RollupHelpsKey, Detail: err.Error()}}, nil
	}
	return nil, err
}

// shardPositions are how far the journal is rolled up, by the keys of the records that say so.
func shardPositions(ctx context.Context, store objstore.Store) (map[string]journal.Positions, error) {
	of := map[string]journal.Positions{}
	for i, err := range objstore.List(ctx, store, objstore.ListOptions{Prefix: layout.RollupProgressPrefix}) {
		if err != nil {
			return nil, err
		}
		p, _, err := record.Read(ctx, store, i.Key, rolled.Kind, rolled.Parse)
		// One that can't be used says nothing of the journal: its worker starts from nothing.
		if err == nil {
			of[i.Key] = p.Positions
		} else if !record.Opaque(err) && !errors.Is(err, objstore.ErrNotFound) {
			return nil, err
		}
	}
	return of, nil
}
