package published

import (
	"container/list"
	"sync"
)

// lru is a cache of values by key, bounded by their sizes. Safe for concurrent use.
type lru[K comparable, V any] struct {
	max  int64
	mu   sync.Mutex
	used int64
	at   map[K]*list.Element
	list list.List // newest first
}

type lruEntry[K comparable, V any] struct {
	key  K
	v    V
	size int64
}

func newLRU[K comparable, V any](max int64) *lru[K, V] {
	return &lru[K, V]{max: max, at: map[K]*list.Element{}}
}

func (c *lru[K, V]) get(k K) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.at[k]
	if e == nil {
		return v, false
	}
	c.list.MoveToFront(e)
	return e.Value.(*lruEntry[K, V]).v, true
}

// put enters v, unless it is larger than the cache.
func (c *lru[K, V]) put(k K, v V, size int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(k)
	if size > c.max {
		return
	}
	c.at[k] = c.list.PushFront(&lruEntry[K, V]{k, v, size})
	for c.used += size; c.used > c.max; {
		c.drop(c.list.Back().Value.(*lruEntry[K, V]).key)
	}
}

func (c *lru[K, V]) remove(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(k)
}

func (c *lru[K, V]) drop(k K) {
	if e := c.at[k]; e != nil {
		delete(c.at, k)
		c.used -= c.list.Remove(e).(*lruEntry[K, V]).size
	}
}

func (c *lru[K, V]) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}
