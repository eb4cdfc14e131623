package repair

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// Asides lists the agents that workers set aside, by shard and hour. bad is called for records that can't be read;
// workers ignore those and try the agents again.
func (r *Repairer) Asides(ctx context.Context, bad func(key string, err error)) ([]catalog.Aside, error) {
	var out []catalog.Aside
	for i, err := range objstore.List(ctx, r.cfg.Store, objstore.ListOptions{Prefix: layout.RollupAsidePrefix}) {
		if err != nil {
			return out, fmt.Errorf("agents that are set aside: %w", err)
		}
		a, _, err := record.Read(ctx, r.cfg.Store, i.Key, catalog.AsideKind, func(b []byte) (catalog.Aside, error) {
			return catalog.ParseAside(i.Key, b)
		})
		if errors.Is(err, objstore.ErrNotFound) {
			continue
		}
		if record.Unreadable(err) {
			bad(i.Key, err)
			continue
		}
		if err != nil {
			return out, fmt.Errorf("agents that are set aside: %w", err)
		}
		out = append(out, a)
	}
	return out, nil
}
