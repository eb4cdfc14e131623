package forward

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// Run is the reconciler's run of the journal: a journal.Writer.
type Run interface {
	Add(journal.Entry) (uint64, error)
	Waiting() int
	Close(context.Context) error
}

// Finish enters what became durable into the journal, and settles it. settled are those that were; an error of one does not
// keep the others from it, and whatever is left the next scan finds.
func (f *Forwarder) Finish(ctx context.Context, run Run, results []Result) (settled int, err error) {
	// What an earlier call could not write is written first, so that it does not grow while the store is away.
	if run.Waiting() > 0 {
		if err := run.Close(ctx); err != nil {
			return 0, err
		}
	}
	var durable []claims.Claim
	for _, r := range results {
		if r.Action != Completed && r.Action != Durable {
			continue
		}
		if _, err := run.Add(r.Entry); err != nil {
			return 0, err
		}
		durable = append(durable, r.Claim)
	}
	if len(durable) == 0 {
		return 0, nil
	}
	// One segment that opens the run and ends it: nobody polls for more of it, and nobody has to fence it.
	if err := run.Close(ctx); err != nil {
		return 0, err
	}
	// Only now: a claim that is settled is answered as a duplicate in every region, and the home's journal must have it.
	var errs []error
	for _, c := range durable {
		if err := f.Settle(ctx, c); err != nil {
			errs = append(errs, err)
			continue
		}
		settled++
	}
	return settled, errors.Join(errs...)
}
