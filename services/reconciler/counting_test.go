package reconciler

import (
	"context"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// counting counts requests by operation and family.
type counting struct {
	objstore.Store
	mu sync.Mutex
	n  map[string]int
}

func (c *counting) add(op, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[op+" "+objstore.Family(key)]++
}

func (c *counting) get(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[what]
}

func (c *counting) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.n {
		n += k
	}
	return n
}

func (c *counting) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	c.add("get", key)
	return c.Store.Get(ctx, key, o)
}

func (c *counting) Head(ctx context.Context, key string) (objstore.Info, error) {
	c.add("head", key)
	return c.Store.Head(ctx, key)
}

func (c *counting) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	c.add("list", o.Prefix)
	return c.Store.List(ctx, o)
}

func (c *counting) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	c.add("create", key)
	return c.Store.Create(ctx, key, b, o)
}

func (c *counting) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	c.add("replace", key)
	return c.Store.Replace(ctx, key, b, etag, o)
}

func (c *counting) Put(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	c.add("put", key)
	return c.Store.Put(ctx, key, b, o)
}
