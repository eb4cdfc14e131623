package storetest

import (
	"context"
	"maps"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Counter counts the requests to a store, those that fail included. It is safe for concurrent use.
type Counter struct {
	objstore.Store

	mu sync.Mutex
	n  map[objstore.Op]int
}

// Count counts the requests to s from now on.
func Count(s objstore.Store) *Counter {
	c := &Counter{n: map[objstore.Op]int{}}
	c.Store = objstore.Decorate(s, func(ctx context.Context, op objstore.Op, do func(context.Context) error) error {
		c.mu.Lock()
		c.n[op]++
		c.mu.Unlock()
		return do(ctx)
	})
	return c
}

// Of is the number of operations with keys, or prefixes of listings, that begin with prefix; an empty name stands for all operations.
func (c *Counter) Of(op, prefix string) (n int) {
	for o, k := range c.All() {
		if (op == "" || o.Name == op) && strings.HasPrefix(o.Key, prefix) {
			n += k
		}
	}
	return n
}

// All gives the number of requests of each operation.
func (c *Counter) All() map[objstore.Op]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

// Reset begins again at zero.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.n)
}
