package follow

import (
	"context"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/queries/live"
)

// Waits between two looks for what blocks lack of evicted batches that are not known one by one.
const (
	recheckWait    = time.Minute
	recheckWaitMax = 30 * time.Minute
)

// recheckLoop rechecks until ctx ends, seldom while it changes nothing.
func (f *Follower) recheckLoop(ctx context.Context) error {
	backoff := run.NewBackoff(recheckWait, recheckWaitMax)
	for {
		if err := backoff.Sleep(ctx); err != nil {
			return err
		}
		changed, err := f.Recheck(ctx)
		if err != nil && ctx.Err() == nil {
			f.d.Log.Warn("what blocks lack of evicted batches is not known yet", "error", err)
		}
		if spans, _ := f.d.Live.Coarse(); changed || len(spans) == 0 {
			backoff.Reset()
		}
	}
}

// Recheck finds out what blocks lack of the evicted batches that are known by spans of time alone, and marks just that.
// It reads the journal again, from where blocks have everything.
func (f *Follower) Recheck(ctx context.Context) (changed bool, err error) {
	spans, mark := f.d.Live.Coarse()
	shards := f.d.Blocks.Shards()
	if len(spans) == 0 || shards == 0 {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PollTimeout)
	defer cancel()
	a, err := accept.ReadAuthority(ctx, f.d.Store)
	if err != nil {
		return false, err
	}
	from, pending, err := f.rolledUp(ctx, a.AuthorityID, shards)
	if err != nil {
		return false, err
	}
	r := recheck{f: f, spans: spans}
	j, err := journal.NewFollower(journal.FollowerConfig{
		Store: f.d.Store, Authority: a.AuthorityID, From: from, Fan: f.fan, Folded: r.apply,
		Segment: func(ctx context.Context, s *journal.Segment) error { return r.apply(ctx, s.Entries) },
		Skip:    func(s journal.Span) bool { return !r.meets(s.MinTime, s.MaxTime) },
	})
	if err != nil {
		return false, err
	}
	for _, b := range pending {
		if err := r.check(ctx, b); err != nil {
			return false, err
		}
	}
	if _, err := j.Poll(ctx); err != nil {
		return false, err
	}
	return f.d.Live.ReplaceCoarse(mark, r.missing), nil
}

// recheck is one look.
type recheck struct {
	f     *Follower
	spans []live.Span

	mu      sync.Mutex
	missing []live.Span
}

// meets reports whether samples of these times, Unix nanoseconds, may be in a span.
func (r *recheck) meets(minNS, maxNS int64) bool {
	for _, s := range r.spans {
		if floorMS(minNS) <= s.Max && floorMS(maxNS) >= s.Min {
			return true
		}
	}
	return false
}

func (r *recheck) apply(ctx context.Context, entries []journal.Entry) error {
	for i := range entries {
		if e := &entries[i]; e.Outcome.Counts() {
			if err := r.check(ctx, e.Batch()); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *recheck) check(ctx context.Context, b accepted.Batch) error {
	if !r.meets(b.MinTime, b.MaxTime) || r.f.d.Live.Shows(b.Identity) {
		return nil
	}
	missing, err := r.f.d.Blocks.Missing(ctx, b.Identity, b.MinTime, b.MaxTime)
	if err != nil || !missing {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missing = append(r.missing, live.Span{Min: floorMS(b.MinTime), Max: floorMS(b.MaxTime)})
	return nil
}
