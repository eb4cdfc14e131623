package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// failed ends a call at a store that did not give what the call needs, after all attempts
// of the store's policy. Nothing is ever cleaned up here: an attempt may still land.
func (p *Protocol) failed(ctx context.Context, step Step, err error) error {
	// A call that ran out of time is no decision: what the store said last must not
	// be found in it as one.
	if e := ctx.Err(); e != nil {
		return fmt.Errorf("%s: %w (%w: %v)", step, e, context.Cause(ctx), err)
	}
	switch {
	case errors.Is(err, objstore.ErrDenied), errors.Is(err, objstore.ErrNoBucket):
		p.events.notReady(step, err)
		return p.retry(ReasonStoreDenied, err)
	case errors.Is(err, objstore.ErrInvalid):
		// It may lie in this submission, such as a key too long for the store: one sender
		// must not take the collector from all others.
		p.events.notReady(step, err)
		return p.retry(ReasonStoreRefused, err)
	case errors.Is(err, objstore.ErrConflict):
		return p.retry(ReasonContended, err)
	}
	return p.retry(ReasonStoreUnavailable, err)
}

func (p *Protocol) retry(reason Reason, err error) error {
	return &RetryError{Reason: reason, After: p.policy.RetryAfter, Err: err}
}

// corrupt ends a call at a record that is there and can't be used. Only an operator
// can mend that; the sender keeps its bytes.
func (p *Protocol) corrupt(name Step, key string, reason Reason, err error) error {
	if errors.Is(err, record.ErrNewerVersion) {
		// Nothing is damaged: a collector of that release, or this one after its upgrade, can answer.
		return p.retry(ReasonNewerRecord, fmt.Errorf("%s record %q: %w", name, key, err))
	}
	p.events.corruptRecord(name, key, err)
	return p.retry(reason, fmt.Errorf("%s record %q: %w", name, key, err))
}

// present is nil where the key has an object. It reads no more of it than tells that, and
// is no HEAD: the 404 of one has no body that says who answers.
func (p *Protocol) present(ctx context.Context, key string) error {
	_, _, err := p.store.Get(ctx, key, objstore.GetOptions{Length: 1})
	return err
}
