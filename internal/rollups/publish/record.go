package publish

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// superseding returns the highest generation above n that was ever committed, 0 when there is none. Once n is
// superseded it stays so, whatever becomes of the other generation.
func (c *core) superseding(ctx context.Context, n catalog.Name) (uint64, error) {
	of := n
	of.Generation = 0
	for above, err := range catalog.Slots(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.BlockManifestsHour(n.Hour), StartAfter: n.Key()}) {
		if err != nil {
			return 0, err
		}
		if above.Name != of {
			return 0, nil // the next slot: nothing is above n in its own
		}
		st, err := c.records().State(ctx, above)
		if err != nil || st.Committed > 0 {
			return st.Committed, err
		}
		// A record of a newer release may supersede n, so this is an error. A damaged one is taken for nothing:
		// until it is repaired n is what readers use.
		for _, g := range st.Unreadable {
			if errors.Is(g.Err, record.ErrNewerVersion) {
				return 0, g.Err
			}
		}
		return 0, nil
	}
	return 0, nil
}

// records returns a reader that caches nothing: decisions need what the store has now.
func (c *core) records() *catalog.Reader {
	return catalog.NewReader(catalog.ReaderConfig{Read: c.read})
}

// replaceRecord writes the Removed record over the block that was read. It is false when another worker changed
// the record meanwhile: read it again.
func (c *core) replaceRecord(ctx context.Context, key, etag string, r *catalog.Removed) (bool, error) {
	_, err := c.cfg.Store.Replace(ctx, key, r.Marshal(), etag, jsonContent)
	if errors.Is(err, objstore.ErrPreconditionFailed) {
		return false, nil
	}
	return err == nil, err
}
