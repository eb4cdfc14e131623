// Package lru is a cache in memory that drops the entries used least recently.
package lru

import "sync"

// Cache holds values by key. Each entry has a weight, and the sum of the weights is
// bounded: with weights of 1 the bound is a number of entries, with sizes it is bytes.
// Safe for concurrent use.
type Cache[K comparable, V any] struct {
	limit int64

	mu      sync.Mutex
	weight  int64
	entries map[K]*entry[K, V]
	// root closes the ring of entries: root.next was used last, root.prev is dropped first.
	root entry[K, V]
}

type entry[K comparable, V any] struct {
	key        K
	value      V
	weight     int64
	prev, next *entry[K, V]
}

// New makes an empty cache whose weights sum up to limit at most.
func New[K comparable, V any](limit int64) *Cache[K, V] {
	c := &Cache[K, V]{limit: limit, entries: map[K]*entry[K, V]{}}
	c.root.prev, c.root.next = &c.root, &c.root
	return c
}

// Get gives the value of k and marks it as used.
func (c *Cache[K, V]) Get(k K) (v V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[k]
	if e == nil {
		return v, false
	}
	c.use(e)
	return e.value, true
}

// Put enters v in place of an earlier value, and drops the entries that exceed the limit. A value
// that is heavier than the limit is not kept, and neither is the earlier one.
func (c *Cache[K, V]) Put(k K, v V, weight int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(c.entries[k])
	c.add(k, v, weight)
}

// GetOrPut gives the value of k and marks it as used. Where there is none, it enters
// what create returns; create must not call the cache.
func (c *Cache[K, V]) GetOrPut(k K, weight int64, create func() V) V {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[k]; e != nil {
		c.use(e)
		return e.value
	}
	v := create()
	c.add(k, v, weight)
	return v
}

// Remove drops the entry of k, if there is one.
func (c *Cache[K, V]) Remove(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(c.entries[k])
}

// Values is a copy of the values, the one used last first. It marks none as used.
func (c *Cache[K, V]) Values() []V {
	c.mu.Lock()
	defer c.mu.Unlock()
	values := make([]V, 0, len(c.entries))
	for e := c.root.next; e != &c.root; e = e.next {
		values = append(values, e.value)
	}
	return values
}

// Len is the number of entries.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// Weight is the sum of the weights of all entries.
func (c *Cache[K, V]) Weight() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.weight
}

// Limit is the most that Weight can be.
func (c *Cache[K, V]) Limit() int64 { return c.limit }

func (c *Cache[K, V]) add(k K, v V, weight int64) {
	// It would drop every other entry and then itself.
	if weight > c.limit {
		return
	}
	e := &entry[K, V]{key: k, value: v, weight: weight}
	c.entries[k] = e
	c.weight += weight
	c.insert(e)
	// The ring is never empty here: a weight above the limit is that of at least one entry.
	for c.weight > c.limit {
		c.remove(c.root.prev)
	}
}

// use puts e to the front of the ring.
func (c *Cache[K, V]) use(e *entry[K, V]) {
	// The most common case for a hot key, which then costs no write.
	if c.root.next == e {
		return
	}
	e.prev.next, e.next.prev = e.next, e.prev
	c.insert(e)
}

func (c *Cache[K, V]) insert(e *entry[K, V]) {
	e.prev, e.next = &c.root, c.root.next
	e.prev.next, e.next.prev = e, e
}

func (c *Cache[K, V]) remove(e *entry[K, V]) {
	if e == nil {
		return
	}
	e.prev.next, e.next.prev = e.next, e.prev
	delete(c.entries, e.key)
	c.weight -= e.weight
}
