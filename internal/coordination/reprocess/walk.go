package reprocess

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
)

// Walker reads the batches of requests from the journal.
type Walker struct {
	Store journal.FollowerStore
	// Authority is the id of the acceptance authority.
	Authority string
}

// Walk calls page with the request's batches, a file or a segment of the journal at a time, and with the number of the
// head's move through which it has gone then, or 0 for what is not folded yet. It begins after that of an earlier
// walk; 0 is the beginning. A batch that was answered several times may come several times.
func (w Walker) Walk(ctx context.Context, o Request, after uint64, page func(through uint64, batches []accepted.Batch) error) error {
	head, _, err := journal.ReadHead(ctx, w.Store)
	if err != nil {
		return err
	}
	files, err := head.FilesAfter(ctx, w.Store, after)
	if err != nil {
		return err
	}
	for _, f := range files {
		if !o.touches(f.Span) {
			continue
		}
		es, err := journal.ReadFile(ctx, w.Store, f)
		if err != nil {
			return err
		}
		if err := page(f.Last, o.batches(es)); err != nil {
			return err
		}
	}
	// What is not folded is read by every attempt. What is folded meanwhile comes as a whole file.
	apply := func(es []journal.Entry) error { return page(0, o.batches(es)) }
	follower, err := journal.NewFollower(journal.FollowerConfig{
		Store: w.Store, Authority: w.Authority, From: head.Positions(),
		Segment: func(_ context.Context, s *journal.Segment) error { return apply(s.Entries) },
		Folded:  func(_ context.Context, es []journal.Entry) error { return apply(es) },
	})
	if err != nil {
		return err
	}
	_, err = follower.Poll(ctx)
	return err
}

// touches reports whether the file may have batches of the request.
func (o Request) touches(s journal.Span) bool {
	return s.MaxAt >= o.From.UnixNano() && s.MinAt < o.To.UnixNano()
}

// batches gives the batches of the request among entries.
func (o Request) batches(es []journal.Entry) (out []accepted.Batch) {
	for i := range es {
		e := &es[i]
		at := time.Unix(0, e.At)
		if !e.Outcome.Conflict() && !at.Before(o.From) && at.Before(o.To) && (o.Agent == "" || o.Agent == e.ID.Agent) {
			out = append(out, e.Batch())
		}
	}
	return out
}
