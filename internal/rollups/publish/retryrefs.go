package publish

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/platform/retry"
)

// triedRefs makes further attempts at requests to a metadata store that failed. A write
// that was applied though its answer was lost is met by the next attempt: one of the same
// transaction succeeds again, and others say ErrChanged, which their callers look into.
type triedRefs struct {
	refs Refs
	r    retry.Retrier
}

var _ Refs = triedRefs{}

func (t triedRefs) try(ctx context.Context, f func(context.Context) error) error {
	err := t.r.Do(ctx, f, func(err error) bool {
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

func (t triedRefs) Epoch(ctx context.Context) (f Epoch, err error) {
	err = t.try(ctx, func(ctx context.Context) (err error) { f, err = t.refs.Epoch(ctx); return err })
	return f, err
}

func (t triedRefs) InitEpoch(ctx context.Context, old *Epoch, next Epoch) error {
	return t.try(ctx, func(ctx context.Context) error { return t.refs.InitEpoch(ctx, old, next) })
}

func (t triedRefs) Add(ctx context.Context, epoch string, txn Txn, keys []string) error {
	return t.try(ctx, func(ctx context.Context) error { return t.refs.Add(ctx, epoch, txn, keys) })
}

func (t triedRefs) Get(ctx context.Context, key string) (r Record, err error) {
	err = t.try(ctx, func(ctx context.Context) (err error) { r, err = t.refs.Get(ctx, key); return err })
	return r, err
}

func (t triedRefs) Swap(ctx context.Context, epoch string, old, next Record) error {
	return t.try(ctx, func(ctx context.Context) error { return t.refs.Swap(ctx, epoch, old, next) })
}

func (t triedRefs) Delete(ctx context.Context, epoch string, old Record) error {
	return t.try(ctx, func(ctx context.Context) error { return t.refs.Delete(ctx, epoch, old) })
}

func (t triedRefs) List(ctx context.Context, after string, limit int) (rs []Record, next string, err error) {
	err = t.try(ctx, func(ctx context.Context) (err error) { rs, next, err = t.refs.List(ctx, after, limit); return err })
	return rs, next, err
}
