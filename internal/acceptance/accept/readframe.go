package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// FrameError says that no generation of an accepted frame is readable and has its hash. Cause is
// what was wrong with the generation that the manifest names.
type FrameError struct {
	SHA256 identity.Digest
	Cause  error
}

func (e *FrameError) Error() string { return fmt.Sprintf("frame %s: %v", e.SHA256, e.Cause) }

// Unwrap returns the cause.
func (e *FrameError) Unwrap() error { return e.Cause }

// ReadFrame reads the bytes of an accepted frame: from the object under key first, a generation of its blob or the
// record that carries it, then from any other generation whose bytes hash to d. size is the frame's length in bytes.
// Errors: *FrameError when no generation is readable; else the store's, and a later call may succeed.
func ReadFrame(ctx context.Context, r objstore.Reader, key string, d identity.Digest, size uint64) ([]byte, error) {
	raw, cause, err := readGeneration(ctx, r, key, d, size)
	if err != nil || raw != nil {
		return raw, err
	}
	// The generation of the manifest may have been collected before the manifest was created;
	// its acceptance then relies on a later one, which only a listing finds.
	for o, err := range objstore.List(ctx, r, objstore.ListOptions{Prefix: layout.BlobStem(d)}) {
		if err != nil {
			return nil, err
		}
		// Keys that are no blobs are not ours to read, and key was read above.
		if _, _, err := layout.ParseBlob(o.Key); err != nil || o.Key == key {
			continue
		}
		if raw, _, err := readGeneration(ctx, r, o.Key, d, size); err != nil || raw != nil {
			return raw, err
		}
	}
	return nil, &FrameError{SHA256: d, Cause: cause}
}

// readGeneration returns nil bytes and a cause when the object is missing or is not the frame.
func readGeneration(ctx context.Context, r objstore.Reader, key string, d identity.Digest, size uint64) (raw []byte, cause, err error) {
	if inlineKey(key) {
		return readInline(ctx, r, key, d)
	}
	raw, _, err = r.Get(ctx, key, objstore.GetOptions{Limit: int64(max(size, 1))})
	switch {
	case isMissing(err):
		return nil, err, nil
	case err != nil:
		return nil, nil, err
	}
	if sum := identity.Sum(raw); sum != d {
		return nil, fmt.Errorf("%s hashes to %s", key, sum), nil
	}
	return raw, nil, nil
}

// isMissing reports whether the store says that there is no object, or none that can be read.
func isMissing(err error) bool {
	return errors.Is(err, objstore.ErrNotFound) || objstore.Unreadable(err)
}
