package publish

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/platform/retry"
)

// retryingRefs repeats requests to a metadata store that failed. If a write was applied though its answer was
// lost, the next attempt finds it: adding the same transaction succeeds again, and the others return ErrChanged,
// which their callers resolve by reading.
type retryingRefs struct {
	refs Refs
	r    retry.Retrier
}

var _ Refs = retryingRefs{}

func (t retryingRefs) try(ctx context.Context, f func(context.Context) error) error {
	err := t.r.Do(ctx, f, func(err error) bool {
		// These are answers of the store: another attempt would only give the same one.
		for _, final := range []error{ErrNoRecord, ErrCondemned, ErrChanged, ErrEpochMismatch, ErrRefsFull, ErrRefsInvalid} {
			if errors.Is(err, final) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("reference sets: %w", err)
	}
	return nil
}

func (t retryingRefs) Epoch(ctx context.Context) (f Epoch, err error) {
	err = t.try(ctx, func(ctx context.Context) (err error) { f, err = t.refs.Epoch(ctx); return err })
	return f, err
}

func (t retryingRefs) InitEpoch(ctx context.Context, old *Epoch, next Epoch) error {
	return t.try(ctx, func(ctx context.Context) error { return t.refs.InitEpoch(ctx, old, next) })
}

func (t retryingRefs) Add(ctx context.Context, epoch string, add ...Addition) error {
	return t.try(ctx, func(ctx context.Context) error { return t.refs.Add(ctx, epoch, add...) })
}

func (t retryingRefs) Get(ctx context.Context, keys ...string) (rs []Record, err error) {
	err = t.try(ctx, func(ctx context.Context) (err error) { rs, err = t.refs.Get(ctx, keys...); return err })
	return rs, err
}

func (t retryingRefs) Condemn(ctx context.Context, epoch string, read ...Record) (changed []string, err error) {
	err = t.try(ctx, func(ctx context.Context) (err error) { changed, err = t.refs.Condemn(ctx, epoch, read...); return err })
	return changed, err
}

func (t retryingRefs) Swap(ctx context.Context, epoch string, old, next Record) error {
	return t.try(ctx, func(ctx context.Context) error { return t.refs.Swap(ctx, epoch, old, next) })
}

func (t retryingRefs) Delete(ctx context.Context, epoch string, read ...Record) (changed []string, err error) {
	err = t.try(ctx, func(ctx context.Context) (err error) { changed, err = t.refs.Delete(ctx, epoch, read...); return err })
	return changed, err
}

func (t retryingRefs) List(ctx context.Context, after string, limit int) (rs []Record, next string, err error) {
	err = t.try(ctx, func(ctx context.Context) (err error) { rs, next, err = t.refs.List(ctx, after, limit); return err })
	return rs, next, err
}
