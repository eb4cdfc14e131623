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

// blob is the frame of one call and the blob generation that the call relies on.
type blob struct {
	p     *Protocol
	frame []byte
	sha   identity.Digest
	// gen is the generation that this call created, or read with the right size and hash.
	gen uint32
	// skipped counts the generations that this call could not rely on.
	skipped int
}

// ensure finds the first generation from gen on that holds the frame: one that this
// call creates, or one that exists with the right bytes. A generation that is
// corrupt or gone is never written again: an earlier delete of it may still be applied later.
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
		// The create said only that the key is taken. An orphan of an earlier call may be
		// truncated, so the bytes are compared before a manifest names them.
		if why == "" {
			b.p.events.blobExists(key)
			return true, nil
		}
		return false, b.skip(why)
	// The hash is computed only here, where the store has found a difference: on the
	// common path that would cost a second pass over every frame.
	case errors.Is(err, objstore.ErrChecksum) && identity.Sum(b.frame) != b.sha:
		return false, &RefusedError{Reason: ReasonInvalidSubmission, Err: fmt.Errorf("the frame does not hash to %s: %w", b.sha, err)}
	}
	return false, b.p.failed(ctx, StepBlob, err)
}

// verify compares a generation that exists with the frame. Empty means its bytes are the frame.
func (b *blob) verify(ctx context.Context, key string) (Skip, error) {
	info, err := b.p.store.Head(ctx, key)
	if err == nil && info.Size == int64(len(b.frame)) && info.SHA256.IsZero() {
		// The store keeps no checksum, so the bytes are read and compared.
		var got []byte
		got, _, err = b.p.store.Get(ctx, key, objstore.GetOptions{Limit: int64(len(b.frame))})
		switch {
		case err == nil && bytes.Equal(got, b.frame):
			return "", nil
		// An object that the store itself finds damaged is corrupt as well. Any other error
		// falls through to the switch below, which reports it.
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
	// A store on which every generation is unusable has a fault, and each generation that
	// is tried stays as an object; so the number is bounded.
	b.gen++
	b.skipped++
	if b.skipped >= b.p.policy.Generations {
		return b.p.retry(ReasonContended, fmt.Errorf("blob %s: %d generations are %s or otherwise unusable", b.sha, b.skipped, why))
	}
	return nil
}

// verifyNotCondemned is step 4 of docs/protocol/acceptance.md. It runs after the reference
// (manifest or quarantine record) was observed, and returns once a generation that holds the
// frame has no condemned marker. A marker that is absent here can only be created later, and
// then the garbage collector's proof finds the reference.
func (b *blob) verifyNotCondemned(ctx context.Context) error {
	for {
		condemned, err := b.condemned(ctx)
		if err != nil || !condemned {
			return err
		}
		// A condemned blob may be deleted at any moment, so the next generation is written or
		// verified, and its marker is read as well before anything relies on it.
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
	err := b.p.checkExists(ctx, layout.Condemned(b.sha, b.gen))
	switch {
	case err == nil, errors.Is(err, objstore.ErrChecksum):
		return true, nil
	case errors.Is(err, objstore.ErrNotFound):
		return false, nil
	}
	return false, b.p.failed(ctx, StepMarker, err)
}
