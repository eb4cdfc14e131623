package storetest

import (
	"context"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Each calls fn for every object under prefix until a call fails. It is for tests that inspect
// a store.
func Each(ctx context.Context, s objstore.Lister, prefix string, fn func(objstore.Info) error) error {
	for o, err := range objstore.List(ctx, s, objstore.ListOptions{Prefix: prefix}) {
		if err == nil {
			err = fn(o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
