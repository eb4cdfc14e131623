package accept

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// blob is the frame of one call and the generation that the call relies on.
type blob struct {
	p     *Protocol
	frame []byte
	sha   identity.Digest
	// gen was created, or seen with the right size and hash, by this call.
	gen uint32
	// skipped generations of this call.
	skipped int
}

// ensure finds the first generation from gen on that holds the frame: one that this
// call creates, or one that exists with the right bytes. A generation that is
// corrupt or gone is never written again: a delete of it may still be on its way.
func (b *blob) ensure(ctx context.Context) error {
	for {
		ok, err := b.ensureGeneration(ctx)
		if ok || err != nil {
			return err
		}
	}
}

func (b *blob) ensureGeneration(ctx context.Context) (bool, error) {
	key := layout.Blob(b.sha, b.gen)
	_, err := b.p.store.Create(ctx, key, b.frame, objstore.PutOptions{SHA256: b.sha, ContentType: "application/vnd.lightmetrics.batch"})
	switch {
	case err == nil:
		b.p.events.blobCreated(key, len(b.frame))
		return true, nil
	case errors.Is(err, objstore.ErrExists):
		why, err := b.verify(ctx, key)
		if err != nil {
			return false, err
		}
		if why == "" {
			b.p.events.blobExists(key)
			return true, nil
		}
		return false, b.skip(why)
	case errors.Is(err, objstore.ErrChecksum) && identity.Sum(b.frame) != b.sha:
		return false, &RefusedError{Reason: ReasonInvalidSubmission, Err: fmt.Errorf("the frame does not hash to %s: %w", b.sha, err)}
	}
	return false, b.p.failed(ctx, StepBlob, err)
}

// verify compares a generation that exists with the frame. Empty means its bytes are the frame.
func (b *blob) verify(ctx context.Context, key string) (Skip, error) {
	info, err := b.p.store.Head(ctx, key)
	if err == nil && info.Size == int64(len(b.frame)) && info.SHA256.IsZero() {
		// The store keeps no checksum: the bytes themselves must tell.
		var got []byte
		got, _, err = b.p.store.Get(ctx, key, objstore.GetOptions{Limit: int64(len(b.frame))})
		switch {
		case err == nil && bytes.Equal(got, b.frame):
			return "", nil
		case err == nil, errors.Is(err, objstore.ErrChecksum):
			return SkipCorrupt, nil
		}
	}
	switch {
	case err == nil && info.Size == int64(len(b.frame)) && info.SHA256 == b.sha:
		return "", nil
	case err == nil:
		return SkipCorrupt, nil
	case errors.Is(err, objstore.ErrNotFound):
		return SkipGone, nil
	}
	return "", b.p.failed(ctx, StepBlob, err)
}

// skip moves to the next generation, a bounded number of times.
func (b *blob) skip(why Skip) error {
	b.p.events.generationSkipped(layout.Blob(b.sha, b.gen), why)
	b.gen++
	b.skipped++
	if b.skipped >= b.p.policy.Generations {
		return b.p.retry(ReasonContended, fmt.Errorf("blob %s: %d generations are %s or otherwise unusable", b.sha, b.skipped, why))
	}
	return nil
}

// settle is step 11: with the reference observed, it returns once a generation that
// holds the frame has no condemned marker. A marker seen absent here can only be
// created later, and then the collector's proof finds the reference.
func (b *blob) verifyNotCondemned(ctx context.Context) error {
	for {
		condemned, err := b.condemned(ctx)
		if err != nil || !condemned {
			return err
		}
		if err := b.skip(SkipCondemned); err != nil {
			return err
		}
		if err := b.ensure(ctx); err != nil {
			return err
		}
	}
}

// condemned reads the marker of the generation relied on. Only a plain "not found"
// is absence; an object of any content is presence.
func (b *blob) condemned(ctx context.Context) (bool, error) {
	err := b.p.present(ctx, layout.Condemned(b.sha, b.gen))
	switch {
	case err == nil, errors.Is(err, objstore.ErrChecksum):
		return true, nil
	case errors.Is(err, objstore.ErrNotFound):
		return false, nil
	}
	return false, b.p.failed(ctx, StepMarker, err)
}
