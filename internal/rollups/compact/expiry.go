package compact

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// expiryTries bounds how often other workers' decisions may come between.
const expiryTries = 10

// decide makes it durable that the resolution's rows of the hours through to have expired, before the first of
// their blocks is removed. A reader that finds a block removed also finds the decision, so no answer is made of
// the blocks that happen to be left.
//
// A record that can't be read is replaced: what it may have said of later hours can still be seen by
// their removed blocks.
func (r *Expirer) decide(ctx context.Context, res timegrid.Resolution, to timegrid.Hour, now time.Time) error {
	var last error
	for range expiryTries {
		done, err := r.advance(ctx, res, to, now)
		if done || err != nil && !retryable(err) {
			return err
		}
		last = err
	}
	return fmt.Errorf("decide the expiry of %s through %s: another changes it again and again: %w", res, to, last)
}

// retryable reports that another worker wrote the record, or this call did and the answer was lost.
func retryable(err error) bool {
	return errors.Is(err, objstore.ErrPreconditionFailed) || errors.Is(err, objstore.ErrExists) ||
		errors.Is(err, objstore.ErrConflict) || errors.Is(err, objstore.ErrUnknown)
}

// advance is one attempt; done means that the decision is stored.
func (r *Expirer) advance(ctx context.Context, res timegrid.Resolution, to timegrid.Hour, now time.Time) (done bool, err error) {
	e, info, err := catalog.ReadExpiry(ctx, r.cfg.Store, r.cfg.AuthorityID)
	damaged := record.Unreadable(err)
	if damaged {
		// Reading a damaged record may not give its ETag, and the replacement must be conditional on it.
		info, err = r.cfg.Store.Head(ctx, layout.RollupExpiryKey)
	}
	if err != nil {
		return false, fmt.Errorf("read %q: %w", layout.RollupExpiryKey, err)
	}
	if e.Covers(to, res) {
		return true, nil
	}
	next := catalog.Expiry{AuthorityID: r.cfg.AuthorityID, Through: maps.Clone(e.Through), DecidedAt: max(now.UnixNano(), 0), WorkerID: r.cfg.WorkerID}
	if next.Through == nil {
		next.Through = map[timegrid.Resolution]timegrid.Hour{}
	}
	next.Through[res] = to
	o := objstore.PutOptions{ContentType: "application/json"}
	if info.ETag == "" && !damaged {
		_, err = r.cfg.Store.Create(ctx, layout.RollupExpiryKey, next.Marshal(), o)
	} else {
		_, err = r.cfg.Store.Replace(ctx, layout.RollupExpiryKey, next.Marshal(), info.ETag, o)
	}
	if err != nil {
		return false, fmt.Errorf("write %q: %w", layout.RollupExpiryKey, err)
	}
	return true, nil
}
