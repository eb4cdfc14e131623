package follow

import (
	"context"
	"fmt"
	"math"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
)

// open makes the journal's follower. When blocks were found that were not there before, it begins again:
// batches before the window were passed over, as no query could reach them.
func (f *Follower) open(ctx context.Context) (*journal.Follower, error) {
	f.mu.Lock()
	j, withBlocks := f.journal, f.withBlocks
	f.mu.Unlock()
	shards := f.d.Blocks.Shards()
	if j != nil && withBlocks == (shards > 0) {
		return j, nil
	}
	a, err := accept.ReadAuthority(ctx, f.d.Store)
	if err != nil {
		return nil, err
	}
	known, err := f.loadLedgers(ctx)
	if err != nil {
		return nil, err
	}
	from, pending, err := f.start(ctx, a.AuthorityID, shards, known)
	if err != nil {
		return nil, err
	}
	oldest := f.oldest()
	j, err = journal.NewFollower(journal.FollowerConfig{
		Store: f.d.Store, Authority: a.AuthorityID, From: from, Fan: f.fan,
		Segment: func(ctx context.Context, s *journal.Segment) error { return f.apply(ctx, s.Run, s.Entries) },
		Folded:  func(ctx context.Context, es []journal.Entry) error { return f.apply(ctx, journal.RunID{}, es) },
		// The ledgers count what such a file has, and no query reaches its samples.
		Skip: func(s journal.Span) bool { return s.Last <= known.Head && s.MaxTime < oldest },
	})
	if err != nil {
		return nil, err
	}
	if err := f.enqueue(ctx, journal.RunID{}, pending); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.journal, f.withBlocks, f.authority = j, shards > 0, a.AuthorityID
	f.helpsAt = time.Time{}
	if f.withBlocks {
		f.helpsAt = f.d.Now()
	}
	return j, nil
}

// loadLedgers reads the ledgers that reconcilers keep, and through which positions they have counted. Without them
// everything is counted here.
func (f *Follower) loadLedgers(ctx context.Context) (journal.Positions, error) {
	if at, ok := f.book.loaded(); ok {
		return at, nil
	}
	l, err := ledgers.LoadCheckpoint(ctx, f.d.Store, f.fan)
	if record.Opaque(err) {
		f.d.Log.Warn("the ledgers can't be used; the whole journal is read", "error", err)
		l = ledgers.Loaded{Set: ledgers.NewSet()}
	} else if err != nil {
		return journal.Positions{}, err
	}
	f.book.load(l)
	return l.Positions, nil
}

// start says from where the journal is read: everything before is counted in the ledgers, and is in blocks or
// among the pending batches.
func (f *Follower) start(ctx context.Context, authority string, shards uint32, known journal.Positions) (journal.Positions, []accepted.Batch, error) {
	if shards == 0 {
		return journal.Positions{}, nil, nil
	}
	from, pending, err := f.rolledUp(ctx, authority, shards)
	return journal.Earliest(from, known), pending, err
}

// rolledUp says through which positions blocks have everything but for the pending batches.
func (f *Follower) rolledUp(ctx context.Context, authority string, shards uint32) (journal.Positions, []accepted.Batch, error) {
	all, err := progress.ReadAll(ctx, f.d.Store, authority, shards)
	if record.Opaque(err) {
		f.d.Log.Warn("a progress record of the rollups can't be used; the whole journal is read", "error", err)
		return journal.Positions{}, nil, nil
	}
	if err != nil {
		return journal.Positions{}, nil, fmt.Errorf("read how far the journal is rolled up: %w", err)
	}
	// What the records say to be in blocks must be in those that queries see.
	if err := f.d.Blocks.Renew(ctx); err != nil {
		return journal.Positions{}, nil, err
	}
	var pending []accepted.Batch
	for _, p := range all {
		pending = append(pending, p.Pending...)
	}
	return progress.Earliest(all), pending, nil
}

// slack is how much earlier than needed files are read: this machine's clock may be set back while it runs.
const slack = time.Hour

// oldest is the time before which no query reaches samples, Unix nanoseconds.
func (f *Follower) oldest() int64 {
	at := f.d.Now().Add(-f.d.History)
	if b := f.d.Blocks.Oldest(); !b.IsZero() && b.Before(at) {
		at = b
	}
	if at = at.Add(-slack); at.Year() < 1700 {
		return math.MinInt64 // nanoseconds do not reach there
	}
	return at.UnixNano()
}
