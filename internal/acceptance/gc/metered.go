package gc

import (
	"context"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// metered counts requests, for the budget of a day.
type metered struct {
	RunnerStore
	n atomic.Uint64
}

func (m *metered) count() uint64  { return m.n.Load() }
func (m *metered) noted(n uint64) { m.n.Add(-n) }

func (m *metered) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	m.n.Add(1)
	return m.RunnerStore.Get(ctx, key, o)
}

func (m *metered) Head(ctx context.Context, key string) (objstore.Info, error) {
	m.n.Add(1)
	return m.RunnerStore.Head(ctx, key)
}

func (m *metered) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	m.n.Add(1)
	return m.RunnerStore.List(ctx, o)
}

func (m *metered) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	m.n.Add(1)
	return m.RunnerStore.Create(ctx, key, b, o)
}

func (m *metered) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	m.n.Add(1)
	return m.RunnerStore.Replace(ctx, key, b, etag, o)
}

// DeleteVersion implements objstore.VersionDeleter as far as the store does.
func (m *metered) DeleteVersion(ctx context.Context, key, version string) error {
	m.n.Add(1)
	return objstore.DeleteVersion(ctx, m.RunnerStore, key, version)
}

func (m *metered) Delete(ctx context.Context, key string) error {
	m.n.Add(1)
	return m.RunnerStore.Delete(ctx, key)
}
