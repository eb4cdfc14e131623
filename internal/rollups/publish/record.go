package publish

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// superseding gives the highest generation above n that was ever committed, 0 when there
// is none. That n is superseded stays true, whatever becomes of that one.
func (c *core) superseding(ctx context.Context, n catalog.Name) (uint64, error) {
	of := n
	of.Generation = 0
	for above, err := range catalog.Slots(ctx, c.cfg.Store, objstore.ListOptions{Prefix: layout.BlockManifestsHour(n.Hour), StartAfter: n.Key()}) {
		if err != nil {
			return 0, err
		}
		if above.Name != of {
			return 0, nil // none is above it
		}
		st, err := c.records().State(ctx, above)
		if err != nil || st.Committed > 0 {
			return st.Committed, err
		}
		// What this release can't read may supersede it. What is damaged does not: it is repaired first.
		for _, g := range st.Doubt {
			if errors.Is(g.Err, record.ErrNewerVersion) {
				return 0, g.Err
			}
		}
		return 0, nil
	}
	return 0, nil
}

// records reads what counts, and remembers nothing.
func (c *core) records() *catalog.Reader {
	return catalog.NewReader(catalog.ReaderConfig{Read: c.read})
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
