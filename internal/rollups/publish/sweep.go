package publish

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Sweep finds what a crash kept from the queue: superseded blocks of an hour, and objects that no committed block
// names. It puts them on the queue and deletes nothing. It returns how many keys it queued.
func (c *Collector) Sweep(ctx context.Context, h timegrid.Hour) (int, error) {
	n, err := c.sweep(ctx, h)
	if err != nil {
		return n, fmt.Errorf("sweep %s: %w", h, err)
	}
	return n, nil
}

// NextHour is the first hour after the given one that has anything to sweep. It costs a listing of a few keys for
// each family. A service sweeps that hour and asks for the next one after it; when none is found it starts over with
// the least hour, so that every hour is swept. Services may divide the hours among them.
func (c *Collector) NextHour(ctx context.Context, after timegrid.Hour) (h timegrid.Hour, found bool, err error) {
	if h, found, err = c.hourAfter(ctx, after); err != nil {
		return after, false, fmt.Errorf("sweep after %s: %w", after, err)
	}
	return h, found, nil
}

// hourAfter finds the first hour of every family of keys, and returns the least.
func (c *core) hourAfter(ctx context.Context, after timegrid.Hour) (first timegrid.Hour, found bool, err error) {
	type family struct{ prefix, from string }
	families := []family{{layout.ManifestsPrefix, layout.BlockManifestsHour(after + 1)}, {layout.IndexPrefix, layout.RollupIndexesHour(after + 1)}}
	for _, res := range timegrid.Resolutions() {
		families = append(families, family{layout.RollupChunks(res), layout.RollupChunksHour(res, after+1)})
	}
	for _, f := range families {
		h, ok, err := c.firstHour(ctx, f.prefix, f.from)
		if err != nil {
			return 0, false, err
		}
		if ok && (!found || h < first) {
			first, found = h, true
		}
	}
	return first, found, nil
}

// firstHour is the hour of the first key after from that is a manifest, chunk or index.
func (c *core) firstHour(ctx context.Context, prefix, from string) (timegrid.Hour, bool, error) {
	for i, err := range objstore.List(ctx, c.cfg.Store, objstore.ListOptions{Prefix: prefix, StartAfter: from, Limit: 10}) {
		if err != nil {
			return 0, false, err
		}
		if n, err := layout.ParseBlockManifest(i.Key); err == nil {
			return n.Hour, true, nil
		}
		if o, err := layout.ParseRollupObject(i.Key); err == nil {
			return o.Hour, true, nil
		}
	}
	return 0, false, nil
}

func (c *Collector) sweep(ctx context.Context, h timegrid.Hour) (int, error) {
	// Objects are listed before manifests. The other order would take every object of a publication that commits
	// in between for an orphan; the collector would keep them, but each would cost reads.
	objects, err := c.listObjects(ctx, h)
	if err != nil {
		return 0, err
	}
	named, superseded, err := c.namedAndSuperseded(ctx, h)
	if err != nil {
		return 0, err
	}
	var orphans []string
	for _, key := range objects {
		if !named[key] {
			orphans = append(orphans, key)
		}
	}
	for _, q := range []struct {
		reason string
		keys   []string
	}{{"superseded", superseded}, {"orphan", orphans}} {
		wait := c.cfg.Policy.Grace
		if q.reason == "orphan" {
			wait = c.cfg.Policy.Delay
		}
		if len(q.keys) == 0 {
			continue
		}
		err := c.push(ctx, q.reason, q.keys, 0, wait)
		c.cfg.Events.queued(q.reason, len(q.keys), err)
		if err != nil {
			return 0, err
		}
	}
	return len(superseded) + len(orphans), nil
}

// listObjects returns the chunks and indexes of an hour.
func (c *core) listObjects(ctx context.Context, h timegrid.Hour) ([]string, error) {
	prefixes := []string{layout.RollupIndexesHour(h)}
	for _, res := range timegrid.Resolutions() {
		prefixes = append(prefixes, layout.RollupChunksHour(res, h))
	}
	var keys []string
	for _, prefix := range prefixes {
		for i, err := range objstore.List(ctx, c.cfg.Store, objstore.ListOptions{Prefix: prefix}) {
			if err != nil {
				return nil, err
			}
			if _, err := layout.ParseRollupObject(i.Key); err == nil { // foreign keys are never queued
				keys = append(keys, i.Key)
			}
		}
	}
	return keys, nil
}

// namedAndSuperseded returns the objects that committed blocks of an hour name, and the committed blocks that are superseded.
func (c *core) namedAndSuperseded(ctx context.Context, h timegrid.Hour) (named map[string]bool, superseded []string, err error) {
	named = map[string]bool{}
	records := c.records()
	for of, err := range catalog.Slots(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.BlockManifestsHour(h)}) {
		if err != nil {
			return named, superseded, err
		}
		all, err := records.All(ctx, of)
		if err != nil {
			return named, superseded, err
		}
		committed := catalog.Fold(all).Committed
		for _, g := range all {
			if g.Record.Block == nil {
				continue // objects of an unreadable record are queued; the collector then finds the record and keeps them
			}
			if g.Name.Generation < committed {
				superseded = append(superseded, g.Name.Key())
			}
			for _, k := range g.Record.Block.Keys() {
				named[k] = true
			}
		}
	}
	return named, superseded, nil
}
