package load

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/history"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// CountedManifests reads the identity manifests of the batches that a bucket counts, in no order: all of them, and in a bucket of one
// of several regions those that its journal has, since the others are copies of another region's batches or have lost.
func CountedManifests(ctx context.Context, store objstore.Store, authority string) (map[identity.Batch]accept.Manifest, error) {
	all, err := manifests(ctx, store)
	if err != nil {
		return nil, err
	}
	switch _, err := store.Head(ctx, layout.RegionsKey); {
	case errors.Is(err, objstore.ErrNotFound):
		return all, nil
	case err != nil:
		return nil, err
	}
	batches := make([]accepted.Batch, 0, len(all))
	for _, m := range all {
		batches = append(batches, m.Batch())
	}
	counted, err := history.Reader{Store: store, Authority: authority}.Counted(ctx, batches)
	if err != nil {
		return nil, err
	}
	for id := range all {
		if !counted[id] {
			delete(all, id)
		}
	}
	return all, nil
}

func manifests(ctx context.Context, store objstore.Store) (map[identity.Batch]accept.Manifest, error) {
	var mu sync.Mutex
	all := map[identity.Batch]accept.Manifest{}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(readers)
	var failed error
	for i, err := range objstore.List(ctx, store, objstore.ListOptions{Prefix: layout.AcceptedPrefix}) {
		if err != nil {
			failed = err
			break
		}
		g.Go(func() error {
			body, _, err := store.Get(gctx, i.Key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
			if err != nil {
				return err
			}
			m, err := accept.ParseManifest(body)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			all[m.Identity] = m
			return nil
		})
	}
	return all, errors.Join(failed, g.Wait())
}
