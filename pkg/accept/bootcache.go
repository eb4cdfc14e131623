package accept

import (
	"container/list"
	"sync"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// bootCache keeps the owners of the boots used last. Boot records never change, so
// an entry is never stale.
type bootCache struct {
	mu    sync.Mutex
	limit int
	order *list.List // of bootOwner, last used first
	byKey map[identity.Boot]*list.Element
}

type bootOwner struct {
	boot  identity.Boot
	spool string
}

func newBootCache(limit int) *bootCache {
	return &bootCache{limit: limit, order: list.New(), byKey: map[identity.Boot]*list.Element{}}
}

func (c *bootCache) get(b identity.Boot) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[b]
	if !ok {
		return "", false
	}
	c.order.MoveToFront(e)
	return e.Value.(bootOwner).spool, true
}

func (c *bootCache) put(b identity.Boot, spool string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byKey[b]; ok {
		return
	}
	c.byKey[b] = c.order.PushFront(bootOwner{b, spool})
	for c.order.Len() > c.limit {
		last := c.order.Back()
		delete(c.byKey, last.Value.(bootOwner).boot)
		c.order.Remove(last)
	}
}
