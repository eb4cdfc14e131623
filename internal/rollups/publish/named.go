package publish

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// maxRemembered bounds the object keys that a collector remembers, about 200 bytes each.
const maxRemembered = 200_000

// trim leaves of a set what it names.
func trim(s *catalog.Block) { s.Inputs, s.Sources, s.Into = catalog.Inputs{}, nil, nil }

// named gives the objects that the committed sets of an hour name: object key to
// manifest key. The listing is made now.
func (c *Collector) named(ctx context.Context, h timegrid.Hour) (map[string]string, error) {
	named := map[string]string{}
	for of, err := range catalog.Slots(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.BlockManifestsHour(h)}) {
		if err != nil {
			return named, err
		}
		all, err := c.known.All(ctx, of)
		if err != nil {
			return named, err
		}
		committed := catalog.Fold(all).Committed
		for _, g := range all {
			switch {
			case errors.Is(g.Err, objstore.ErrNotFound):
			case record.Unreadable(g.Err) && g.Name.Span == 0 && g.Name.Generation < committed:
				// Nobody reads it, whatever it named. Of a compaction that is not known: its sources
				// may point at it whatever came after.
			case g.Err != nil:
				return named, g.Err
			case g.Record.Block != nil:
				for _, k := range g.Record.Block.Keys() {
					named[k] = g.Name.Key()
				}
			}
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
