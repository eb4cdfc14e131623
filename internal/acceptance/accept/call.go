package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// failed makes the error of a call whose store request failed after all attempts of the
// store's policy. Nothing is cleaned up here, ever: an attempt may still be applied later.
func (p *Protocol) failed(ctx context.Context, step Step, err error) error {
	// A call whose context ended decided nothing. The store's error is only printed (%v),
	// so that errors.Is does not find in it an answer such as ErrExists.
	if e := ctx.Err(); e != nil {
		return fmt.Errorf("%s: %w (%w: %v)", step, e, context.Cause(ctx), err)
	}
	switch {
	case errors.Is(err, objstore.ErrDenied), errors.Is(err, objstore.ErrNoBucket):
		p.events.notReady(step, err)
		return p.retry(ReasonStoreDenied, err)
	case errors.Is(err, objstore.ErrInvalid):
		// The cause may be this submission alone, such as a key too long for the store. So the
		// collector stays ready: one sender must not take it from all others.
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

// corrupt makes the error of a call that needs a record which exists and can't be used. Only an
// operator can repair that, so it is a RetryError: the sender keeps its bytes.
func (p *Protocol) corrupt(name Step, key string, reason Reason, err error) error {
	if errors.Is(err, record.ErrNewerVersion) {
		// Nothing is damaged: a collector of that release, or this one after its upgrade, can answer.
		return p.retry(ReasonNewerRecord, fmt.Errorf("%s record %q: %w", name, key, err))
	}
	p.events.corruptRecord(name, key, err)
	if errors.Is(err, ErrReplica) {
		reason = ReasonReplica
	}
	return p.retry(reason, fmt.Errorf("%s record %q: %w", name, key, err))
}

// checkExists returns nil where the key has an object. It is a GET of one byte and no HEAD: a
// 404 to a HEAD has no body, so it can't be told whether the store or a proxy before it answered.
func (p *Protocol) checkExists(ctx context.Context, key string) error {
	_, _, err := p.store.Get(ctx, key, objstore.GetOptions{Length: 1})
	return err
}
