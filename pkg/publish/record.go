package publish

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/record"
)

// superseding gives the lowest generation above n that was ever committed, 0 when there
// is none. That n is superseded stays true, whatever becomes of that one.
func (c *core) superseding(ctx context.Context, n catalog.Name) (uint64, error) {
	for info, err := range objstore.List(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.RollupSetsHour(n.Hour), StartAfter: n.Key()}) {
		if err != nil {
			return 0, err
		}
		m, err := layout.ParseRollupSet(info.Key)
		if err != nil {
			continue
		}
		if m.Shard != n.Shard || m.Window != n.Window || m.Span != n.Span {
			return 0, nil // keys of one shard and window stand together
		}
		r, _, err := c.record(ctx, info.Key)
		if err != nil && !errors.Is(err, record.ErrCorrupt) {
			return 0, err
		}
		if r != nil && r.Aborted == nil {
			return m.Generation, nil
		}
	}
	return 0, nil
}

// replaceRecord writes the Removed record over the set that was read. false: somebody
// else changed it meanwhile, or the outcome is not known: look again.
func (c *core) replaceRecord(ctx context.Context, key, etag string, r *catalog.Removed) (bool, error) {
	_, err := c.cfg.Store.Replace(ctx, key, r.Marshal(), etag, jsonContent)
	if errors.Is(err, objstore.ErrPreconditionFailed) {
		return false, nil
	}
	return err == nil, err
}
