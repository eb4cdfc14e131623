package refstest

import (
	"context"

	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
)

// Counted counts the calls of references by their method, for one caller at a time.
type Counted struct {
	publish.Refs
	Calls map[string]int
}

// Epoch counts.
func (r Counted) Epoch(ctx context.Context) (publish.Epoch, error) {
	r.Calls["epoch"]++
	return r.Refs.Epoch(ctx)
}

// Add counts.
func (r Counted) Add(ctx context.Context, epoch string, add ...publish.Addition) error {
	r.Calls["add"]++
	return r.Refs.Add(ctx, epoch, add...)
}

// Get counts.
func (r Counted) Get(ctx context.Context, keys ...string) ([]publish.Record, error) {
	r.Calls["get"]++
	return r.Refs.Get(ctx, keys...)
}

// Condemn counts.
func (r Counted) Condemn(ctx context.Context, epoch string, read ...publish.Record) ([]string, error) {
	r.Calls["condemn"]++
	return r.Refs.Condemn(ctx, epoch, read...)
}

// Swap counts.
func (r Counted) Swap(ctx context.Context, epoch string, old, next publish.Record) error {
	r.Calls["swap"]++
	return r.Refs.Swap(ctx, epoch, old, next)
}

// Delete counts.
func (r Counted) Delete(ctx context.Context, epoch string, read ...publish.Record) ([]string, error) {
	r.Calls["delete"]++
	return r.Refs.Delete(ctx, epoch, read...)
}

// List counts.
func (r Counted) List(ctx context.Context, after string, limit int) ([]publish.Record, string, error) {
	r.Calls["list"]++
	return r.Refs.List(ctx, after, limit)
}
