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
	out, err := list(ctx, r.cfg.Store, layout.RollupAsidePrefix, catalog.AsideKind, catalog.ParseAside, bad)
	if err != nil {
		return out, fmt.Errorf("agents that are set aside: %w", err)
	}
	return out, nil
}

// list reads the records below prefix, in the order of their keys. Those that can't be read go to bad and do not end
// the list: an operator who repairs has to see the others.
func list[T any](ctx context.Context, s Store, prefix string, kind record.Kind, parse func(key string, b []byte) (T, error), bad func(key string, err error)) ([]T, error) {
	var out []T
	for i, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: prefix}) {
		if err != nil {
			return out, err
		}
		one, _, err := record.Read(ctx, s, i.Key, kind, func(b []byte) (T, error) { return parse(i.Key, b) })
		switch {
		case errors.Is(err, objstore.ErrNotFound): // a worker deleted it since the listing
		case record.Unreadable(err):
			bad(i.Key, err)
		case err != nil:
			return out, err
		default:
			out = append(out, one)
		}
	}
	return out, nil
}
