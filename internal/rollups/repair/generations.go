package repair

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// Generations calls fn with the block that counts of each shard's hour and resolution, in the order of keys, and bad
// for the records that can't be read above it.
func (r *Repairer) Generations(ctx context.Context, o Options, fn func(*catalog.Block) error, bad func(key string, err error)) error {
	records := r.records()
	for of, err := range catalog.Slots(ctx, r.cfg.Store, objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: layout.BlockManifestsHour(o.From)}) {
		if err == nil && of.Name.Hour > o.To {
			return nil
		}
		if err == nil && (of.Name.Span > 0 || o.Shard != nil && of.Name.Shard != *o.Shard) {
			continue
		}
		var st catalog.State
		if err == nil {
			st, err = records.State(ctx, of)
		}
		if err != nil {
			return fmt.Errorf("generations: %w", err)
		}
		for _, g := range st.Unreadable {
			if !errors.Is(g.Err, objstore.ErrNotFound) { // deleted since it was listed
				bad(g.Name.Key(), g.Err)
			}
		}
		if st.Block == nil {
			continue
		}
		if err := fn(st.Block); err != nil {
			return err
		}
	}
	return nil
}
