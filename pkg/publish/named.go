package publish

import (
	"context"
	"errors"
	"sync"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/record"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// maxRemembered bounds the object keys that a collector remembers, about 200 bytes each.
const maxRemembered = 200_000

// remembered is what records named, by manifest key and ETag: a listing tells which
// records are as they were, and only the others are read again.
type remembered struct {
	mu    sync.Mutex
	names map[[2]string][]string
	keys  int
}

func (m *remembered) get(key, etag string) ([]string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names, ok := m.names[[2]string{key, etag}]
	return names, ok && etag != ""
}

func (m *remembered) put(key, etag string, names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys += len(names) + 1; m.names == nil || m.keys > maxRemembered {
		m.names, m.keys = map[[2]string][]string{}, len(names)+1
	}
	m.names[[2]string{key, etag}] = names
}

// named gives the objects that the committed sets of an hour name: object key to
// manifest key. The listing is made now.
func (c *Collector) named(ctx context.Context, h window.Hour) (map[string]string, error) {
	named := map[string]string{}
	for i, err := range objstore.List(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.RollupSetsHour(h)}) {
		if err != nil {
			return named, err
		}
		n, err := layout.ParseRollupSet(i.Key)
		if err != nil {
			continue // not a set's
		}
		names, ok := c.remembered.get(i.Key, i.ETag)
		if !ok {
			r, info, err := c.record(ctx, i.Key)
			if record.Unreadable(err) {
				over, serr := c.over(ctx, n)
				if over && serr == nil {
					continue // nobody reads it, whatever it named
				}
				return named, errors.Join(err, serr)
			}
			if err != nil {
				return named, err
			}
			if r != nil && r.Set != nil {
				names = r.Set.Keys()
			}
			if r != nil {
				c.remembered.put(i.Key, info.ETag, names)
			}
		}
		for _, k := range names {
			named[k] = i.Key
		}
	}
	return named, nil
}

// over reports whether a higher generation of the set was committed, so that nobody reads
// it: for records that can't be read. Of a compaction it is not known: its sources may
// point at it whatever came after.
func (c *core) over(ctx context.Context, n catalog.Name) (bool, error) {
	if n.Span > 0 {
		return false, nil
	}
	by, err := c.superseding(ctx, n)
	return by > 0, err
}
