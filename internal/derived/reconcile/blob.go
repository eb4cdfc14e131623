package reconcile

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// checkBlob searches for a generation whose bytes hash to d, first under key. size is the
// frame's length in bytes, 0 if unknown. The cause is empty if there is one. An error means
// that the store did not answer, so nothing is known.
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
			continue // not a generation, or checked above
		}
		c, text, err := r.checkGeneration(ctx, o.Key, d, size)
		switch {
		case err != nil:
			return cause, detail, err
		case c == "":
			return "", "", nil
		case c == CauseCorrupt:
			// A damaged generation tells an operator more than a missing one.
			cause, detail = c, text
		}
	}
	return cause, detail, nil
}

// HasFrame reports whether the generation of the frame that the entry names is there and whole, or the record that
// carries the frame, which is read and hashed. Where it is not, another generation may be; Reconcile finds out.
func (r *Reconciler) HasFrame(ctx context.Context, e *journal.Entry) (bool, error) {
	if e.Inline {
		return accept.HasInline(ctx, r.Store, e.FrameKey(), e.SHA256)
	}
	cause, _, err := r.checkGeneration(ctx, layout.Blob(e.SHA256, e.Generation), e.SHA256, e.Bytes)
	return cause == "", err
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
