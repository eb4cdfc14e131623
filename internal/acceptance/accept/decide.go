package accept

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

var (
	jsonContent = objstore.PutOptions{ContentType: "application/json"}
	// inlineContent: the object begins with JSON, and is none as a whole.
	inlineContent = objstore.PutOptions{ContentType: "application/octet-stream"}
)

func contentOf(inline bool) objstore.PutOptions {
	if inline {
		return inlineContent
	}
	return jsonContent
}

// decide creates the identity manifest or reads the one that exists. It succeeds only with the
// manifest observed: a create that was answered "created", or a read that returned it.
func (b *blob) decide(ctx context.Context, m Manifest) (Result, error) {
	key, body := layout.Accepted(m.Identity), m.MarshalWith(b.frame)
	// A frame that the manifest carries is hashed by nobody else: the store hashes the object that it gets.
	if m.Inline && identity.Sum(b.frame) != b.sha {
		return Result{}, &RefusedError{Reason: ReasonInvalidSubmission, Err: fmt.Errorf("the frame does not hash to %s", b.sha)}
	}
	stored, created, err := objstore.CreateOrGet(ctx, b.p.store, key, body, MaxObjectBytes, contentOf(m.Inline))
	switch {
	case created:
		return Result{Outcome: Accepted, Manifest: m, ManifestKey: key, ManifestBytes: body}, nil
	case errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) && ctx.Err() == nil:
		return Result{}, b.p.corrupt(StepManifest, key, ReasonCorruptManifest, err)
	case err != nil:
		return Result{}, b.p.failed(ctx, StepManifest, err)
	}
	return b.compare(key, stored, m)
}

// compare derives the outcome from the manifest that exists. It may be this call's own,
// from an attempt whose answer was lost.
func (b *blob) compare(key string, stored []byte, m Manifest) (Result, error) {
	there, err := ParseManifest(stored)
	if err == nil {
		err = checkBelongs(there, m)
	}
	if err != nil {
		return Result{}, b.p.corrupt(StepManifest, key, ReasonCorruptManifest, err)
	}
	res := Result{Outcome: Conflict, Manifest: there, ManifestKey: key, ManifestBytes: stored}
	if there.FrameSHA256 == m.FrameSHA256 {
		res.Outcome, b.found = Duplicate, true
		if there.AttemptID == m.AttemptID {
			// The attempt id is random per call, so nobody else can have written this manifest. To
			// answer "duplicate" here would count the batch for no submission at all.
			res.Outcome = Accepted
			b.p.events.ownWrite(key)
		}
	}
	return res, nil
}

// checkBelongs checks that the stored manifest may be stored under this key at all.
func checkBelongs(there, ours Manifest) error {
	switch {
	case there.Identity != ours.Identity:
		return ManifestKind.Corrupt("", "it names the identity %s", there.Identity)
	case there.AuthorityID != ours.AuthorityID:
		return ManifestKind.Corrupt("", "it is of the authority %q, ours is %q", there.AuthorityID, ours.AuthorityID)
	case there.FrameSHA256 == ours.FrameSHA256 && there.FrameBytes != ours.FrameBytes:
		return ManifestKind.Corrupt("", "it has %d frame bytes, the frame of this hash has %d", there.FrameBytes, ours.FrameBytes)
	}
	return nil
}

// quarantine writes the record of the submitted frame that lost the conflict. The record is the
// reference that keeps its blob, so it is written before the condemned marker is read. A record
// that exists already is as good, whatever its content: its key names the identity and the
// submitted hash. "Conflict" is answered only once the record is known to exist.
//
// carried: the record is known to carry the frame, so that no blob is needed. A call that writes blobs relies on its
// blob all the same: its key keeps that too, and one reason fewer is to be right about.
func (b *blob) quarantine(ctx context.Context, res *Result, inline bool) (carried bool, err error) {
	m := res.Manifest
	key := layout.Quarantine(m.Identity, b.sha)
	c := ConflictRecord{
		AuthorityID: b.p.authorityID, Identity: m.Identity,
		AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256,
		SubmittedBlobKey: layout.Blob(b.sha, b.gen), SubmittedSHA256: b.sha,
		AcceptedManifestKey: res.ManifestKey,
		ObservedAt:          max(b.p.clock.Now().UnixNano(), 0), CollectorID: b.p.collectorID, Met: res.Met,
	}
	if inline {
		c.SubmittedBlobKey, c.SubmittedBytes = "", uint64(len(b.frame))
	}
	stored, created, err := objstore.CreateOrGet(ctx, b.p.store, key, c.MarshalWith(b.frame), MaxObjectBytes, contentOf(inline))
	// Unreadable content is no failure here, because nobody needs the content: the key alone
	// keeps the blob.
	if errors.Is(err, objstore.ErrExists) && objstore.Unreadable(err) {
		stored, err = nil, nil
	}
	if err != nil {
		return false, b.p.failed(ctx, StepQuarantine, err)
	}
	if created {
		b.p.events.quarantined(key)
	}
	res.QuarantineKey = key
	return inline && (created || b.carries(stored, m.Identity)), nil
}

// carries reports whether the quarantine record that exists has the submitted frame. A collector that writes blobs may
// have made it, or damage what it says: then a blob is needed.
func (b *blob) carries(stored []byte, id identity.Batch) bool {
	c, err := ParseConflictRecord(stored)
	return err == nil && c.Inline() && c.SubmittedSHA256 == b.sha && c.Identity == id && c.AuthorityID == b.p.authorityID
}
