package publish

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// abortUndecided aborts every transaction that has a plan and is not decided; those of former epochs are among
// them. After that objects may be deleted.
func (c *Collector) abortUndecided(ctx context.Context, f Epoch) (Epoch, error) {
	hours := decidedHours{c: c}
	for i, err := range objstore.List(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.PlansPrefix}) {
		if err != nil {
			return f, err
		}
		names := plannedGenerations(i.Key)
		if len(names) == 0 {
			continue
		}
		decided, err := hours.at(ctx, names[0].Hour)
		if err != nil {
			return f, err
		}
		for _, n := range names {
			if decided[n.Key()] {
				continue
			}
			if _, err := c.abort(ctx, n, "a new epoch of the reference sets began"); err != nil {
				return f, err
			}
			c.cfg.Events.abortedTxn(Txn(n.Key()))
		}
	}
	decided := f
	decided.Decided = true
	err := c.cfg.Refs.InitEpoch(ctx, &f, decided)
	if errors.Is(err, ErrChanged) {
		if got, e := c.epoch(ctx); e == nil && got == decided {
			return decided, nil // this call's own write after a lost answer, or another collector's with the same result
		}
	}
	return decided, err
}

// plannedGenerations returns the generations that are made from the plan with this key.
func plannedGenerations(key string) []catalog.Name {
	if n, err := layout.ParseCompactionPlan(key); err == nil {
		return []catalog.Name{n}
	}
	h, s, gen, err := layout.ParseRollupPlan(key)
	if err != nil {
		return nil
	}
	var names []catalog.Name
	for _, res := range timegrid.Resolutions() {
		names = append(names, catalog.Name{Hour: h, Shard: s, Resolution: res, Generation: gen})
	}
	return names
}

// decidedHours keeps the last hour's listing: plans come in the order of shards and hours.
type decidedHours struct {
	c    *Collector
	hour timegrid.Hour
	keys map[string]bool
}

func (d *decidedHours) at(ctx context.Context, h timegrid.Hour) (map[string]bool, error) {
	if d.keys != nil && d.hour == h {
		return d.keys, nil
	}
	keys := map[string]bool{}
	for i, err := range objstore.List(ctx, d.c.cfg.Store, objstore.ListOptions{Prefix: layout.BlockManifestsHour(h)}) {
		if err != nil {
			return nil, err
		}
		keys[i.Key] = true
	}
	d.hour, d.keys = h, keys
	return keys, nil
}
