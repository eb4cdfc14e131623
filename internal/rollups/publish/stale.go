package publish

import (
	"context"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
)

// A metadata store that was restored from an older copy keeps its epoch, so nothing shows by itself that
// references are missing. What gives it away: a transaction adds its references before it commits, so those of a
// committed block must be there for objects that were written under this epoch. Publisher and collector read such
// blocks anyway and check it.

// wrote reports whether the object was written under this epoch.
func (f Epoch) wrote(key string) bool {
	o, err := layout.ParseRollupObject(key)
	return err == nil && o.Generation>>16 == f.Number
}

// checkReferences checks with one read that the block that is superseded has its references. If it has not, the
// object goes on the queue, so that the collector sees the same and begins a new epoch.
func (t *transaction) checkReferences(ctx context.Context, f Epoch) error {
	if t.before == nil {
		return nil
	}
	keys := t.before.Keys()
	i := slices.IndexFunc(keys, f.wrote)
	if i < 0 {
		// All objects are of older epochs: nothing can be said by them.
		return nil
	}
	key := keys[i]
	recs, err := t.p.cfg.Refs.Get(ctx, key)
	if err != nil || slices.Contains(recs[0].Txns, Txn(t.before.TransactionID)) {
		return err
	}
	// The references are dropped when the block is removed, so a block that was removed since is no proof.
	r, _, err := t.p.record(ctx, t.before.Name.Key())
	if err != nil || r == nil || r.Block == nil || !r.Block.Names(key) {
		return err
	}
	err = t.p.push(ctx, "reference missing", []string{key}, 0, 0)
	t.p.cfg.Events.queued("reference missing", 1, err)
	return fmt.Errorf("%w: %q, named by %q", ErrRefsStale, key, t.before.Name.Key())
}
