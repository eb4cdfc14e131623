package progress

import (
	"context"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Open calls fn with every accepted batch of the shard that no block may have yet: those that the record names as
// pending, and what the journal has after its positions. Some may be in blocks, and some come twice. What is not
// among them is in the blocks of its hours.
func (p Progress) Open(ctx context.Context, s journal.FollowerStore, fn func(accepted.Batch)) error {
	for _, b := range p.Pending {
		fn(b)
	}
	return eachAccepted(ctx, s, p.AuthorityID, p.Positions, func(e *journal.Entry) {
		if shard.Of(e.ID.Agent, p.Shards) == p.Shard {
			fn(e.Batch())
		}
	})
}

// eachAccepted calls fn with the accepted batches that the journal has after positions.
func eachAccepted(ctx context.Context, s journal.FollowerStore, authority string, from journal.Positions, fn func(*journal.Entry)) error {
	apply := func(es []journal.Entry) error {
		for i := range es {
			if es[i].Outcome.Counts() {
				fn(&es[i])
			}
		}
		return nil
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: authority, From: from,
		Segment: func(_ context.Context, g *journal.Segment) error { return apply(g.Entries) },
		Folded:  func(_ context.Context, es []journal.Entry) error { return apply(es) },
	})
	if err != nil {
		return err
	}
	_, err = f.Poll(ctx)
	return err
}
