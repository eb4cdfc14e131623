package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// answersWithin is how long derived state may take to agree with the bucket after the last fault.
const answersWithin = 60 * time.Second

// maxReported bounds the violations that Check names.
const maxReported = 20

// Check compares a cluster at rest with what was sent, and gives every difference: all
// answers of an identity must be those of a write-once register, the bucket must hold by itself (fsck), hold each acknowledged batch byte for byte,
// no second hash for any identity, no gaps or overlaps; and PromQL must, within a minute, count
// everything in the bucket once and say that nothing is missing.
func Check(ctx context.Context, c *cluster.Cluster, sent *Sent) (*fsck.Report, error) {
	store, err := c.OpenStore(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	// Filled while fsck reads, so that the bucket is read once.
	found := map[identity.Batch]identity.Digest{}
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority,
		OnBatch: func(m accept.Manifest, _ *frame.Batch) { found[m.Identity] = m.FrameSHA256 }})
	if err != nil {
		return nil, err
	}
	_, err = sent.Calls.Check()
	errs = append(errs, err)
	for _, f := range report.Findings {
		errs = append(errs, errors.New(f.String()))
	}
	// fsck read each frame and found it to hash to what its manifest says.
	for id, d := range sent.Acked {
		if found[id] != d {
			errs = append(errs, fmt.Errorf("%s was acknowledged with %s, the bucket has %s", id, d, found[id]))
		}
	}
	// What was answered is in the journal. A record without an entry is one whose collector died, or whose answer was lost.
	if unanswered := report.Manifests + report.Quarantined - min(report.Manifests, uint64(len(sent.Acked))) - min(report.Quarantined, uint64(sent.Conflicts)); report.Journal.NotJournalled > unanswered {
		errs = append(errs, fmt.Errorf("%d records are not in the journal, at most %d were not answered", report.Journal.NotJournalled, unanswered))
	}
	// There may be more: the answer to a conflict can be lost after the frame was quarantined.
	if int(report.Quarantined) < sent.Conflicts {
		errs = append(errs, fmt.Errorf("%d conflicts were answered, %d are quarantined", sent.Conflicts, report.Quarantined))
	}
	for b, l := range report.Ledgers {
		if gaps := l.Gaps(3); len(gaps) > 0 {
			errs = append(errs, fmt.Errorf("%s has gaps %v", b, gaps))
		}
		if over := l.Overlaps(3); len(over) > 0 {
			errs = append(errs, fmt.Errorf("%s has overlaps %v", b, over))
		}
	}
	if len(errs) > maxReported {
		errs = append(errs[:maxReported], fmt.Errorf("and %d more", len(errs)-maxReported))
	}
	if err := answers(ctx, c, sent, report); err != nil {
		errs = append(errs, err, unjournalled(ctx, store, found, sent))
	}
	return report, errors.Join(errs...)
}

// unjournalled names the accepted batches that no entry of the journal names. Nobody was answered for them; or a
// promise is broken.
func unjournalled(ctx context.Context, store objstore.Store, found map[identity.Batch]identity.Digest, sent *Sent) error {
	var mu sync.Mutex
	named := map[identity.Batch]bool{}
	take := func(_ context.Context, es []journal.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		for i := range es {
			if es[i].Outcome.Counts() {
				named[es[i].ID] = true
			}
		}
		return nil
	}
	f, err := journal.NewFollower(journal.FollowerConfig{Store: store, Authority: cluster.Authority, Folded: take,
		Segment: func(ctx context.Context, s *journal.Segment) error { return take(ctx, s.Entries) }})
	if err == nil {
		_, err = f.Poll(ctx)
	}
	if err != nil {
		return fmt.Errorf("read the journal: %w", err)
	}
	var errs []error
	for id := range found {
		if _, acked := sent.Acked[id]; !named[id] && len(errs) < maxReported {
			errs = append(errs, fmt.Errorf("%s is accepted and in no segment of the journal (acknowledged to the fleet: %v)", id, acked))
		}
	}
	return errors.Join(errs...)
}

// sums are PromQL's view of the bucket.
type sums struct{ sum, count, all float64 }

func answers(ctx context.Context, c *cluster.Cluster, sent *Sent, report *fsck.Report) error {
	want := sums{sent.Sum, float64(sent.Count), float64(report.Samples)}
	var got sums
	var warnings []string
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	err := cluster.Poll(ctx, "PromQL to see everything once", func() (bool, error) {
		now := time.Now()
		// Only the warnings of the last round count: partial answers before the deadline are expected.
		warnings = nil
		for expression, into := range map[string]*float64{
			"sum(sum_over_time(" + Metric + "[2h]))":   &got.sum,
			"sum(count_over_time(" + Metric + "[2h]))": &got.count,
		} {
			v, w, err := c.Scalar(ctx, expression, now)
			if err != nil {
				return false, err
			}
			*into = v
			warnings = append(warnings, w...)
		}
		var err error
		if got.all, _, err = c.CountSamples(ctx, now); err != nil {
			return false, err
		}
		return got == want && len(warnings) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w: got %+v, want %+v, warnings %v", err, got, want, warnings)
	}
	return nil
}
