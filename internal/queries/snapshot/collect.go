package snapshot

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Collect lists snapshots and packs, and deletes all snapshots but the last three, and the packs that none of the three names.
// Where the last one names no pack, all that the two before it name has left the window, and they go too: of a shard for
// which nothing comes no further snapshot is made, so they would stay for ever. Packs with a
// greater number than the newest snapshot belong to a running job and stay. Only the job of its number names a
// pack for the first time, and that number is decided, so what is deleted is never named again.
func (c *Chain) Collect(ctx context.Context) (snapshots, packs int, err error) {
	c.listed = true
	return c.collect(ctx)
}

// collect is Collect by what the chain knows of the store. It lists only where somebody may have left a pack that no
// snapshot names: after a start, after a failure, and now and then.
func (c *Chain) collect(ctx context.Context) (snapshots, packs int, err error) {
	if c.listed {
		// Not before: packs that are named by snapshots which the chain does not know of must not go.
		if c.numbers, err = Numbers(ctx, c.cfg.Store, c.cfg.Shard); err != nil {
			return 0, 0, err
		}
	}
	if len(c.numbers) == 0 {
		return 0, 0, nil
	}
	defer func() { c.listed = err != nil }()
	newest := c.numbers[len(c.numbers)-1]
	kept := keep
	switch last, err := c.read(ctx, newest); {
	case err != nil && !absent(err):
		return 0, 0, err
	case err == nil && len(last.Packs) == 0:
		kept = 1
	}
	old := slices.Clone(c.numbers[:max(0, len(c.numbers)-kept)])
	// What can't be read now may still name packs, so nothing is deleted. A snapshot that is damaged for good
	// names none that a reader could use.
	named, err := c.named(ctx, c.numbers[len(old):])
	if err != nil {
		return 0, 0, err
	}
	var gone []string
	if !c.listed {
		before, err := c.named(ctx, old)
		if err != nil {
			return 0, 0, err
		}
		for _, key := range slices.Sorted(maps.Keys(before)) {
			if !named[key] {
				gone = append(gone, key)
			}
		}
	}
	// Snapshots are deleted before packs: a snapshot whose packs are gone would send readers to objects that do
	// not exist.
	for _, n := range old {
		// In ascending order, so that a crash leaves the newest.
		if err := c.remove(ctx, layout.LiveSnapshot(c.cfg.Shard, n)); err != nil {
			return snapshots, packs, err
		}
		c.numbers = c.numbers[1:]
		snapshots++
	}
	if c.listed {
		if gone, err = c.unnamed(ctx, newest, named); err != nil {
			return snapshots, packs, err
		}
	}
	for _, key := range gone {
		if err := c.remove(ctx, key); err != nil {
			return snapshots, packs, err
		}
		packs++
	}
	return snapshots, packs, nil
}

// named gives the keys of the packs that snapshots name.
func (c *Chain) named(ctx context.Context, numbers []uint64) (map[string]bool, error) {
	keys := map[string]bool{}
	for _, n := range numbers {
		s, err := c.read(ctx, n)
		if err != nil && !absent(err) {
			return nil, err
		}
		if err == nil {
			for _, r := range s.Packs {
				keys[r.Key(c.cfg.Shard)] = true
			}
		}
	}
	return keys, nil
}

// unnamed lists the packs up to the number that no snapshot names.
func (c *Chain) unnamed(ctx context.Context, number uint64, named map[string]bool) (gone []string, err error) {
	for o, err := range objstore.List(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.LivePacks(c.cfg.Shard)}) {
		if err != nil {
			return nil, fmt.Errorf("list packs of shard %s: %w", c.cfg.Shard, err)
		}
		if _, n, _, err := layout.ParseLivePack(o.Key); err == nil && n <= number && !named[o.Key] {
			gone = append(gone, o.Key)
		}
	}
	return gone, nil
}

func (c *Chain) remove(ctx context.Context, key string) error {
	if err := c.cfg.Store.Delete(ctx, key); err != nil {
		return fmt.Errorf("delete %q: %w", key, err)
	}
	return nil
}
