package gc

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrJournalIncomplete: batches were accepted before the journal began, or a file of it was lost, and no full audit has
// finished since. All their frames would be candidates, and each proof would leave a marker.
var ErrJournalIncomplete = errors.New("the journal does not name every accepted batch yet: a reconciler's first full audit completes it")

// named reports for each of the blobs whether an entry of the journal names its hash: of an accepted
// batch, of a duplicate or of a conflict, wherever the reconcilers keep derived keys. It selects candidates and
// proves nothing: what the journal does not name yet costs a proof, and what it wrongly names keeps an orphan. It reads
// the whole journal once, however many the blobs are; so plans of many blobs cost less than many plans. An error means
// that the journal could not be read: then there is no plan.
func (c *Collector) named(ctx context.Context, blobs []objstore.Info) ([]bool, error) {
	named := make([]bool, len(blobs))
	if len(blobs) == 0 {
		return named, nil
	}
	begin, err := journal.ReadBegin(ctx, c.cfg.Store)
	if err != nil {
		return nil, err
	}
	if begin.By == "" {
		return nil, ErrJournalIncomplete
	}
	of := make(map[identity.Digest]bool, len(blobs))
	for _, b := range blobs {
		if d, _, err := layout.ParseBlob(b.Key); err == nil {
			of[d] = false
		}
	}
	mark := func(entries []journal.Entry) {
		for i := range entries {
			// A manifest that carries its frame is no reference to a blob; a quarantine record always is, by its key.
			if entries[i].Inline && !entries[i].Outcome.Conflict() {
				continue
			}
			if _, asked := of[entries[i].SHA256]; asked {
				of[entries[i].SHA256] = true
			}
		}
	}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: c.cfg.Store, Authority: c.cfg.AuthorityID,
		Segment: func(_ context.Context, s *journal.Segment) error { mark(s.Entries); return nil },
		Folded:  func(_ context.Context, e []journal.Entry) error { mark(e); return nil },
	})
	if err != nil {
		return nil, err
	}
	polled, err := f.Poll(ctx)
	if err != nil {
		return nil, err
	}
	if !begin.Covers(polled.Lost) {
		return nil, ErrJournalIncomplete
	}
	for i, b := range blobs {
		if d, _, err := layout.ParseBlob(b.Key); err == nil {
			named[i] = of[d]
		}
	}
	return named, nil
}
