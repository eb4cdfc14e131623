package snapshot

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Collect deletes all snapshots but the last three, and the packs that none of the three names. Where the last one names no
// pack, all that the two before it name has left the window, and they go too: of a shard for which nothing comes no further
// snapshot is made, so they would stay for ever. Packs with a
// greater number than the newest snapshot belong to a running job and stay. Only the job of its number names a
// pack for the first time, and that number is decided, so what is deleted is never named again.
func (c *Chain) Collect(ctx context.Context) (snapshots, packs int, err error) {
	numbers, err := Numbers(ctx, c.cfg.Store, c.cfg.Shard)
	if err != nil || len(numbers) == 0 {
		return 0, 0, err
	}
	newest := numbers[len(numbers)-1]
	named := map[string]bool{}
	kept := keep
	switch last, err := c.read(ctx, newest); {
	case err != nil && !absent(err):
		return 0, 0, err
	case err == nil && len(last.Packs) == 0:
		kept = 1
	}
	old := numbers[:max(0, len(numbers)-kept)]
	for _, n := range numbers[len(old):] {
		s, err := c.read(ctx, n)
		// What can't be read now may still name packs, so nothing is deleted. A snapshot that is damaged for good
		// names none that a reader could use.
		if err != nil && !absent(err) {
			return 0, 0, err
		}
		if err == nil {
			for _, r := range s.Packs {
				named[r.Key(c.cfg.Shard)] = true
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
		snapshots++
	}
	gone, err := c.unnamed(ctx, newest, named)
	if err != nil {
		return snapshots, packs, err
	}
	for _, key := range gone {
		if err := c.remove(ctx, key); err != nil {
			return snapshots, packs, err
		}
		packs++
	}
	return snapshots, packs, nil
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
