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
// that the store did not answer, so nothing is known. read asks for the bytes, whatever checksum the store keeps.
func (r *Reconciler) checkBlob(ctx context.Context, key string, d identity.Digest, size uint64, read bool) (Cause, string, error) {
	cause, detail, err := r.checkGeneration(ctx, key, d, size, read)
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
		c, text, err := r.checkGeneration(ctx, o.Key, d, size, read)
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
// carries the frame, which is read and hashed. Where it is not, another generation may be; Reconcile finds out. read hashes the
// bytes of a blob too, where the store's checksum would do without: bytes may have changed since that was taken.
func (r *Reconciler) HasFrame(ctx context.Context, e *journal.Entry, read bool) (bool, error) {
	if e.Inline {
		return accept.HasInline(ctx, r.Store, e.FrameKey(), e.SHA256)
	}
	cause, _, err := r.checkGeneration(ctx, layout.Blob(e.SHA256, e.Generation), e.SHA256, e.Bytes, read)
	return cause == "", err
}

// readGeneration reads and hashes a generation.
func (r *Reconciler) readGeneration(ctx context.Context, key string, d identity.Digest, size uint64) (Cause, string, error) {
	limit := int64(objstore.DefaultGetLimit)
	if size > 0 {
		limit = int64(size)
	}
	body, _, err := r.Store.Get(ctx, key, objstore.GetOptions{Limit: limit})
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return CauseMissing, "no object " + key, nil
	case objstore.Unreadable(err):
		return CauseCorrupt, fmt.Sprintf("%s: %v", key, err), nil
	case err != nil:
		return "", "", err
	}
	if size > 0 && uint64(len(body)) != size {
		return CauseCorrupt, fmt.Sprintf("%s has %d bytes, want %d", key, len(body), size), nil
	}
	if sum := identity.Sum(body); sum != d {
		return CauseCorrupt, fmt.Sprintf("%s hashes to %s", key, sum), nil
	}
	return "", "", nil
}

func (r *Reconciler) checkGeneration(ctx context.Context, key string, d identity.Digest, size uint64, read bool) (Cause, string, error) {
	if read {
		return r.readGeneration(ctx, key, d, size)
	}
	info, err := r.Store.Head(ctx, key)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return CauseMissing, "no object " + key, nil
	case err != nil:
		return "", "", err
	case size > 0 && uint64(info.Size) != size:
		return CauseCorrupt, fmt.Sprintf("%s has %d bytes, want %d", key, info.Size, size), nil
	}
	if info.SHA256.IsZero() { // the store keeps no checksum
		return r.readGeneration(ctx, key, d, size)
	}
	if info.SHA256 != d {
		return CauseCorrupt, fmt.Sprintf("%s hashes to %s", key, info.SHA256), nil
	}
	return "", "", nil
}

// CheckBlob reads and hashes the object under key; the fault is empty if it is the frame with the hash d.
func (r *Reconciler) CheckBlob(ctx context.Context, key string, d identity.Digest) (fault string, err error) {
	_, fault, err = r.readGeneration(ctx, key, d, 0)
	return fault, err
}
