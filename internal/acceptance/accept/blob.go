package accept

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
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
	// id is the batch's identity, hour that of its last sample.
	id   identity.Batch
	hour timegrid.Hour
	// found: a manifest that names this frame existed when this call created one, or it is this
	// call's own and the answer was lost.
	found bool
	// deep: a generation that exists is read and compared, whatever checksum the store has noted of it.
	deep bool
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
	var info objstore.Info
	var err error
	if b.deep {
		info.Size = int64(len(b.frame))
	} else {
		info, err = b.p.store.Head(ctx, key)
	}
	if err == nil && info.Size == int64(len(b.frame)) && info.SHA256.IsZero() {
		// The store keeps no checksum, so the bytes are read and compared.
		var got []byte
		got, _, err = b.p.store.Get(ctx, key, objstore.GetOptions{Limit: int64(len(b.frame))})
		switch {
		case err == nil && bytes.Equal(got, b.frame):
			return "", nil
		// An object that the store itself finds damaged is corrupt as well. Any other error
		// falls through to the switch below, which reports it.
		case err == nil, errors.Is(err, objstore.ErrChecksum), b.deep && objstore.Unreadable(err):
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
func (b *blob) skip(why Skip) error { return b.skipTo(b.gen+1, why) }

func (b *blob) skipTo(gen uint32, why Skip) error {
	b.p.events.generationSkipped(layout.Blob(b.sha, b.gen), why)
	// A store on which every generation is unusable has a fault, and each generation that
	// is tried stays as an object; so the number is bounded.
	b.gen = gen
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
		if err != nil {
			return err
		}
		next := b.gen + 1
		if !condemned {
			next, err = b.condemnedByHour(ctx)
			if err != nil || b.gen >= next {
				return err
			}
		}
		// A condemned blob may be deleted at any moment, so a later generation is written or
		// verified, and its markers are read as well before anything relies on it.
		if err := b.skipTo(next, SkipCondemned); err != nil {
			return err
		}
		if err := b.ensure(ctx); err != nil {
			return err
		}
	}
}

// verifyUnlessSpared is verifyNotCondemned, but for the read of the marker where the entry of this call is spared it: the
// collection of orphans waits until each run has named the epoch of what it condemns, so it finds the reference of every entry that
// a segment of an earlier epoch has. Retention goes by another rule, so its record is read as ever.
func (b *blob) verifyUnlessSpared(ctx context.Context, spared bool) error {
	if spared {
		next, err := b.condemnedByHour(ctx)
		if err != nil {
			return err
		}
		// A later generation has markers of its own, which nobody has checked.
		if b.gen >= next {
			b.p.events.markerSpared()
			return nil
		}
	}
	return b.verifyNotCondemned(ctx)
}

// condemnedByHour returns the lowest generation that retention has not condemned for the
// batch's hour. If the call's generation is below it, the note of the rewritten frame is in place.
//
// Only calls that found the manifest read the record. Retention removes a frame after it has
// proved that published blocks cover the batch, and nothing covers a batch without a manifest: so
// where this call made the manifest, every removal of the frame came after the acceptance, as one
// does that comes after the answer. A frame that lost a conflict is in no block.
func (b *blob) condemnedByHour(ctx context.Context) (uint32, error) {
	if !b.found {
		return 0, nil
	}
	key := layout.CondemnedHour(b.hour)
	c, _, err := record.Read(ctx, b.p.store, key, CondemnedHourKind, ParseCondemnedHour)
	if errors.Is(err, objstore.ErrNotFound) {
		return 0, nil
	}
	if err == nil {
		err = c.CheckBelongs(b.p.authorityID, b.hour)
	}
	switch {
	// Which generations are condemned is not known, so none can be relied on.
	case record.Opaque(err) && ctx.Err() == nil:
		return 0, b.p.corrupt(StepMarker, key, ReasonCorruptCondemnedHour, err)
	case err != nil:
		return 0, b.p.failed(ctx, StepMarker, err)
	case b.gen >= c.Below:
		return c.Below, nil
	}
	// The note comes before the generation that it names: a crash in between leaves a note of
	// nothing, and never a frame that no later pass of retention knows of.
	note := RewrittenNote{AuthorityID: b.p.authorityID, FrameSHA256: b.sha, Generation: c.Below, RewrittenAt: max(b.p.clock.Now().UnixNano(), 0), CollectorID: b.p.collectorID}
	_, err = b.p.store.Create(ctx, layout.Rewritten(b.hour, b.id, c.Below), note.Marshal(), jsonContent)
	if err != nil && !errors.Is(err, objstore.ErrExists) {
		return 0, b.p.failed(ctx, StepMarker, err)
	}
	return c.Below, nil
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
