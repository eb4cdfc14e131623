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

// manifests is what the manifests of an hour say.
type manifests struct {
	named map[string]string // objects that committed blocks name: object key to manifest key
	slots map[catalog.Name]slotRecords
}

// slotRecords is a slot's highest committed generation, and what became of each generation of it that is decided.
type slotRecords struct {
	committed uint64
	decided   map[uint64]fate
}

// fate of a generation that is decided.
type fate uint8

const (
	published fate = iota // a block, or a record that can't be read
	removed
	aborted
)

// manifests reads the manifests of an hour. The listing is made by this call, never cached.
func (c *Collector) manifests(ctx context.Context, h timegrid.Hour) (*manifests, error) {
	m := &manifests{named: map[string]string{}, slots: map[catalog.Name]slotRecords{}}
	for of, err := range catalog.Slots(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.BlockManifestsHour(h)}) {
		if err != nil {
			return m, err
		}
		all, err := c.cache.All(ctx, of)
		if err != nil {
			return m, err
		}
		slot := slotRecords{catalog.Fold(all).Committed, map[uint64]fate{}}
		m.slots[of.Name] = slot
		for _, g := range all {
			switch {
			case errors.Is(g.Err, objstore.ErrNotFound): // deleted since it was listed: it names nothing
			case record.Unreadable(g.Err) && g.Name.Span == 0 && g.Name.Generation < slot.committed:
				// A higher generation hides it, so what it named does not matter. Of a compaction that can't be
				// said: sources may redirect to a lower generation.
				slot.decided[g.Name.Generation] = published
			case g.Err != nil:
				return m, g.Err
			case g.Record.Block != nil:
				slot.decided[g.Name.Generation] = published
				for _, k := range g.Record.Block.Keys() {
					m.named[k] = g.Name.Key()
				}
			case g.Record.Removed != nil:
				slot.decided[g.Name.Generation] = removed
			default:
				slot.decided[g.Name.Generation] = aborted
			}
		}
	}
	return m, nil
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
