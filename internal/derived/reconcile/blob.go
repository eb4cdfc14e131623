package reconcile

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// checkBlob looks for a generation whose bytes hash to d, first under key. size is
// the frame's length, 0 when it is not known. An error means that the store could
// not be asked; cause is empty when the blob is well.
func (r *Reconciler) checkBlob(ctx context.Context, key string, d identity.Digest, size uint64) (Cause, string, error) {
	cause, detail, err := r.checkGeneration(ctx, key, d, size)
	if err != nil || cause == "" {
		return cause, detail, err
	}
	for o, err := range objstore.List(ctx, r.Store, objstore.ListOptions{Prefix: layout.BlobStem(d)}) {
		if err != nil {
			return cause, detail, err
		}
		if _, _, err := layout.ParseBlob(o.Key); err != nil || o.Key == key {
			continue // not a generation, or looked at already
		}
		c, text, err := r.checkGeneration(ctx, o.Key, d, size)
		switch {
		case err != nil:
			return cause, detail, err
		case c == "":
			return "", "", nil
		case c == CauseCorrupt:
			cause, detail = c, text
		}
	}
	return cause, detail, nil
}

func (r *Reconciler) checkGeneration(ctx context.Context, key string, d identity.Digest, size uint64) (Cause, string, error) {
	info, err := r.Store.Head(ctx, key)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return CauseMissing, "no object " + key, nil
	case err != nil:
		return "", "", err
	case size > 0 && uint64(info.Size) != size:
		return CauseCorrupt, fmt.Sprintf("%s has %d bytes, want %d", key, info.Size, size), nil
	}
	sum := info.SHA256
	if sum.IsZero() { // the store keeps no checksum
		body, _, err := r.Store.Get(ctx, key, objstore.GetOptions{})
		switch {
		case errors.Is(err, objstore.ErrNotFound):
			return CauseMissing, "no object " + key, nil
		case objstore.Unreadable(err):
			return CauseCorrupt, fmt.Sprintf("%s: %v", key, err), nil
		case err != nil:
			return "", "", err
		}
		sum = identity.Sum(body)
	}
	if sum != d {
		return CauseCorrupt, fmt.Sprintf("%s hashes to %s", key, sum), nil
	}
	return "", "", nil
}
