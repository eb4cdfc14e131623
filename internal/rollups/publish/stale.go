package publish

import (
	"context"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
)

// A metadata store that was restored from an older copy keeps its epoch, so that
// nothing tells by itself that sets are missing. What gives it away: a transaction has
// its references before it commits, so those of a committed set must be there, in objects
// that were written under the epoch. Publisher and collector meet such sets anyway.

// wrote reports whether the object was written under this epoch.
func (f Epoch) wrote(key string) bool {
	o, err := layout.ParseRollupObject(key)
	return err == nil && o.Generation >= f.FirstGeneration() && o.Generation < f.FirstGeneration()+1<<16
}

// checkReferences looks whether the set that is superseded has its references: one read.
// Where it has not, the collector is given the object, so that it sees the same and begins
// a new epoch of the reference sets.
func (t *transaction) checkReferences(ctx context.Context, f Epoch) error {
	if t.before == nil {
		return nil
	}
	keys := t.before.Keys()
	i := slices.IndexFunc(keys, f.wrote)
	if i < 0 {
		return nil
	}
	key := keys[i]
	rec, err := t.p.refs(ctx, key)
	if err != nil || slices.Contains(rec.Txns, Txn(t.before.TransactionID)) {
		return err
	}
	// Its objects may go once it is removed: only a set that still names the object counts.
	r, _, err := t.p.record(ctx, t.before.Name.Key())
	if err != nil || r == nil || r.Block == nil || !r.Block.Names(key) {
		return err
	}
	err = t.p.push(ctx, "reference missing", []string{key}, 0, 0)
	t.p.cfg.Events.queued("reference missing", 1, err)
	return fmt.Errorf("%w: %q, named by %q", ErrRefsStale, key, t.before.Name.Key())
}
