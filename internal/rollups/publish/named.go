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

// maxRemembered bounds the object keys that a collector caches, about 200 bytes each.
const maxRemembered = 200_000

// trim keeps only what a block names.
func trim(s *catalog.Block) {
	s.Inputs, s.Sources, s.Redirect, s.Journal = catalog.Inputs{}, nil, nil, nil
}

// namedObjects returns the objects that the committed blocks of an hour name: object key to manifest key. The listing is
// made by this call, never cached.
func (c *Collector) namedObjects(ctx context.Context, h timegrid.Hour) (map[string]string, error) {
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
			case errors.Is(g.Err, objstore.ErrNotFound): // deleted since it was listed: it names nothing
			case record.Unreadable(g.Err) && g.Name.Span == 0 && g.Name.Generation < committed:
				// A higher generation hides it, so what it named does not matter. Of a compaction that can't be
				// said: sources may redirect to a lower generation.
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

// isSuperseded reports whether a higher generation of the block was committed, so that no reader uses it any more. It is
// for records that can't be read. Of a compaction it can't be known: its sources may redirect to it whatever came
// after.
func (c *core) isSuperseded(ctx context.Context, n catalog.Name) (bool, error) {
	if n.Span > 0 {
		return false, nil
	}
	by, err := c.superseding(ctx, n)
	return by > 0, err
}
