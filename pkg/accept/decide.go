package accept

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

var jsonContent = objstore.PutOptions{ContentType: "application/json"}

// decide creates the identity manifest or learns who did. It ends only with the
// manifest observed: a create that said created, or a read that returned it.
func (b *blob) decide(ctx context.Context, m Manifest) (Result, error) {
	body := m.Marshal()
	s := b.step(StepManifest, layout.Accepted(m.Identity))
	for {
		err := b.p.create(ctx, s.key, body, jsonContent)
		if err == nil {
			return Result{Outcome: Accepted, Manifest: m, ManifestKey: s.key, ManifestBytes: body}, nil
		}
		if errors.Is(err, objstore.ErrExists) {
			var res Result
			if res, err = b.compare(ctx, &s, m); err == nil {
				return res, nil
			}
			if !errors.Is(err, objstore.ErrNotFound) {
				return Result{}, err
			}
			// Said to exist, then not found: neither is final. Create again.
		}
		if err := s.again(ctx, err); err != nil {
			return Result{}, err
		}
	}
}

// compare reads the manifest that exists. An error that wraps ErrNotFound means
// that the key has none; every other error ends the call.
func (b *blob) compare(ctx context.Context, s *step, m Manifest) (Result, error) {
	var stored []byte
	for {
		var err error
		stored, err = b.p.get(ctx, s.key, MaxRecordBytes)
		if err == nil {
			break
		}
		if errors.Is(err, objstore.ErrNotFound) {
			return Result{}, err
		}
		if objstore.Unreadable(err) {
			return Result{}, b.corrupt(StepManifest, s.key, ReasonCorruptManifest, err)
		}
		if err := s.again(ctx, err); err != nil {
			return Result{}, err
		}
	}
	there, err := ParseManifest(stored)
	if err == nil {
		err = belongs(there, m)
	}
	if err != nil {
		return Result{}, b.corrupt(StepManifest, s.key, ReasonCorruptManifest, err)
	}
	res := Result{Outcome: Conflict, Manifest: there, ManifestKey: s.key, ManifestBytes: stored}
	if there.FrameSHA256 == m.FrameSHA256 {
		res.Outcome = Duplicate
		if there.AttemptID == m.AttemptID {
			res.Outcome = Accepted
			b.p.events.ownWrite(s.key)
		}
	}
	return res, nil
}

// belongs checks that the stored manifest can stand under this key at all.
func belongs(there, ours Manifest) error {
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

// quarantine writes the record of the submitted frame that lost. The record is the
// reference that keeps its blob, so it comes before the marker is read. A record
// that exists says the same: its key names the identity and the submitted hash.
func (b *blob) quarantine(ctx context.Context, res *Result) error {
	m := res.Manifest
	s := b.step(StepQuarantine, layout.Quarantine(m.Identity, b.sha))
	body := ConflictRecord{
		AuthorityID: b.p.authorityID, Identity: m.Identity,
		AcceptedBlobKey: m.RawBlobKey, AcceptedSHA256: m.FrameSHA256,
		SubmittedBlobKey: layout.Blob(b.sha, b.gen), SubmittedSHA256: b.sha,
		AcceptedManifestKey: res.ManifestKey,
		ObservedAt:          max(b.p.clock.Now().UnixNano(), 0), CollectorID: b.p.collectorID,
	}.Marshal()
	for {
		err := b.p.create(ctx, s.key, body, jsonContent)
		if errors.Is(err, objstore.ErrExists) {
			// Said to exist: a conflict is answered only of a record that is there.
			if e := b.p.look(ctx, s.key); e != nil && !errors.Is(e, objstore.ErrChecksum) {
				err = e
			}
		}
		if err == nil || errors.Is(err, objstore.ErrExists) {
			if err == nil {
				b.p.events.quarantined(s.key)
			}
			res.QuarantineKey = s.key
			return nil
		}
		if err := s.again(ctx, err); err != nil {
			return err
		}
	}
}
