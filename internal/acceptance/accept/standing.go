package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/lru"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Standing is what becomes of a frame whose record was observed.
type Standing uint8

// Standings.
const (
	// Stands: a generation has the frame's bytes and is not condemned, so that no collection that begins later misses its
	// record; or the record carries the frame.
	Stands Standing = iota + 1
	// Lost: no object has the frame's bytes.
	Lost
)

// Keep makes sure that the frame of the record under key stands, for somebody who does not have its bytes: what a duplicate
// verifies. Where the generation that the record names does not stand, the bytes are taken from any object that has them, and
// written again as a duplicate would. Errors are those of ReadReference and Restore; nothing is concluded from them.
func Keep(ctx context.Context, c Config, r objstore.Reader, key string) (Standing, error) {
	ref, err := ReadReference(ctx, c.Store, c.AuthorityID, key)
	if err != nil {
		return 0, fmt.Errorf("keep: %w", err)
	}
	if ref.Inline {
		return Stands, nil // its frame was hashed with the record
	}
	stands, err := c.stands(ctx, ref)
	if err != nil {
		return 0, fmt.Errorf("keep %s: %w", key, err)
	}
	if stands {
		return Stands, nil
	}
	size := ref.Bytes
	if size == 0 {
		size = objstore.DefaultGetLimit
	}
	frame, err := ReadFrame(ctx, r, ref.FrameKey, ref.SHA256, size)
	var gone *FrameError
	if errors.As(err, &gone) {
		return Lost, nil
	}
	if err == nil {
		_, err = Restore(ctx, c, key, frame)
	}
	if err != nil {
		return 0, fmt.Errorf("keep %s: %w", key, err)
	}
	return Stands, nil
}

// stands reports whether the generation that the record names has the frame and is not condemned. The record was observed
// before, so that an absent marker proves something.
func (c Config) stands(ctx context.Context, ref Reference) (bool, error) {
	sum, gen, err := layout.ParseBlob(ref.FrameKey)
	if err != nil || sum != ref.SHA256 {
		return false, nil // any generation will do, and Restore finds one
	}
	info, err := c.Store.Head(ctx, ref.FrameKey)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	// Without a checksum of the store's the bytes are read, and compared, by Restore.
	case info.SHA256 != ref.SHA256 || ref.Bytes > 0 && uint64(info.Size) != ref.Bytes:
		return false, nil
	}
	p := &Protocol{store: c.Store, authorityID: c.AuthorityID, policy: DefaultPolicy(), boots: lru.New[identity.Boot, string](1)}
	b := blob{p: p, sha: ref.SHA256, gen: gen, id: ref.ID, hour: ref.hour}
	condemned, err := b.condemned(ctx)
	if err != nil || condemned {
		return false, err
	}
	h, _, err := record.Read(ctx, c.Store, layout.CondemnedHour(ref.hour), CondemnedHourKind, ParseCondemnedHour)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return true, nil
	case err == nil:
		err = h.CheckBelongs(c.AuthorityID, ref.hour)
	}
	return gen >= h.Below, err
}
