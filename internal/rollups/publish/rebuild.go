package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// References is the result of comparing all blocks with their reference sets.
type References struct {
	// Blocks that are committed and name objects, and the Objects that they name; an object counts once for each
	// block that names it.
	Blocks  int `json:"blocks"`
	Objects int `json:"objects"`
	// Missing are objects whose reference sets lack the block's transaction. A rebuild adds it.
	Missing int `json:"missing"`
	// Condemned objects are named by a committed block although nothing can refer to them any more; they stay as
	// long as the block does. One that is gone is found by a check of the blocks.
	Condemned int `json:"condemned"`
	// Unreadable are keys of records that can't be read, so that it is not known what they name.
	Unreadable []string `json:"unreadable"`
}

// maxUnreadable keys of a report.
const maxUnreadable = 1000

// References walks all committed blocks, superseded generations and compactions included, and compares the
// reference sets of their objects. With add it puts missing transactions into the sets, in batches. progress is
// called after every block and may be nil. The epoch must be intact: begin one first. Repeats are harmless: a
// committed block's transaction may be in the set of each of its objects at any time.
func (c *Collector) References(ctx context.Context, add bool, progress func(References)) (References, error) {
	rep := References{Unreadable: []string{}}
	f, err := c.epoch(ctx)
	if err == nil {
		err = c.allReferences(ctx, f, add, &rep, progress)
	}
	if err != nil {
		return rep, fmt.Errorf("references: %w", err)
	}
	return rep, nil
}

func (c *Collector) allReferences(ctx context.Context, f Epoch, add bool, rep *References, progress func(References)) error {
	for i, err := range objstore.List(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.ManifestsPrefix}) {
		if err != nil {
			return err
		}
		if _, err := layout.ParseBlockManifest(i.Key); err != nil {
			continue
		}
		if err := c.references(ctx, f, i.Key, add, rep); err != nil {
			return err
		}
		if progress != nil {
			progress(*rep)
		}
	}
	return nil
}

func (c *Collector) references(ctx context.Context, f Epoch, key string, add bool, rep *References) error {
	r, _, err := c.record(ctx, key)
	if record.Unreadable(err) {
		if len(rep.Unreadable) < maxUnreadable {
			rep.Unreadable = append(rep.Unreadable, key)
		}
		return nil
	}
	if err != nil || r == nil || r.Block == nil || len(r.Block.Objects) == 0 {
		return err
	}
	t := Txn(r.Block.TransactionID)
	// Outputs with equal bytes name one object several times.
	keys := slices.Compact(slices.Sorted(slices.Values(r.Block.Keys())))
	rep.Blocks++
	rep.Objects += len(keys)
	var missing []string
	for part := range slices.Chunk(keys, MaxAdd) {
		recs, err := c.cfg.Refs.Get(ctx, part...)
		if err != nil {
			return err
		}
		for _, rec := range recs {
			switch {
			case rec.Condemned:
				rep.Condemned++
			case !slices.Contains(rec.Txns, t):
				missing = append(missing, rec.Key)
			}
		}
	}
	rep.Missing += len(missing)
	if !add {
		return nil
	}
	for part := range slices.Chunk(missing, MaxAdd) {
		if err := c.refer(ctx, f, t, part, rep); err != nil {
			return err
		}
	}
	return nil
}

// refer adds a batch, without the objects that were condemned meanwhile.
func (c *Collector) refer(ctx context.Context, f Epoch, t Txn, keys []string, rep *References) error {
	for len(keys) > 0 {
		err := c.cfg.Refs.Add(ctx, f.Token(), Addition{t, keys})
		var condemned *CondemnedError
		if !errors.As(err, &condemned) {
			return err
		}
		n := len(keys)
		keys = slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return slices.Contains(condemned.Keys, k) })
		// An answer that names none of these keys would repeat for ever.
		if len(keys) == n {
			return err
		}
		rep.Condemned += n - len(keys)
	}
	return nil
}
