// Package reconcile writes the derived state of one manifest: it reads the manifest,
// compares, and creates what is missing. Every step may be repeated, in any order of
// manifests, by any number of concurrent reconcilers. docs/protocol/reconcile.md has the
// order of the writes and the reasons.
//
// The package starts no goroutines and reads no clock of its own.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrUnknownKey says that the key is neither that of an identity manifest nor that of a quarantine record.
var ErrUnknownKey = errors.New("not a key of a manifest")

// Kind names a derived key.
type Kind string

// Kinds of derived keys, in the order in which they are written.
const (
	AcceptedByBlob   Kind = "accepted_by_blob"
	RawBlobByTime    Kind = "raw_blob_by_time"
	AcceptedByTime   Kind = "accepted_by_time" // last: where it exists, so do the others
	QuarantineByBlob Kind = "quarantine_by_blob"
)

// Kinds lists all of them.
func Kinds() []Kind { return []Kind{AcceptedByBlob, RawBlobByTime, AcceptedByTime, QuarantineByBlob} }

// Reconciler reconciles manifests of one store. All fields except Store and Now are optional.
type Reconciler struct {
	Store objstore.Store
	// AuthorityID that manifests must carry; empty means that of the store's record.
	AuthorityID string
	// Now stamps repair records.
	Now func() time.Time
	// ID names this reconciler in repair records.
	ID string
	// KeysInJournal says that derived keys are not written: the journal's files have what they would say.
	KeysInJournal bool
	// Removed reports whether the batch's frame was removed on purpose; it is called after
	// the frame was found missing. Nil means never.
	Removed func(ctx context.Context, id identity.Batch) (bool, error)

	own atomic.Pointer[string] // the store's authority record, once read
}

// Options of one pass.
type Options struct {
	// HeadFirst sends a HEAD for each derived key before it creates it, which is cheaper
	// where most exist already (audits). Without it the conditional create finds out.
	HeadFirst bool
	// Recheck says that a repair record exists for this manifest: remove it if the blob is fine.
	Recheck bool
	// Read says that the frame's bytes are hashed, also where the store keeps a checksum of its own.
	Read bool
}

// Result of one pass that was completed.
type Result struct {
	Key   string
	Bytes []byte
	// Manifest is set for identity manifests whose record could be read.
	Manifest *accept.Manifest
	// Conflict is set for quarantine records that could be read.
	Conflict *accept.ConflictRecord
	// Created are the derived keys that this pass wrote.
	Created []Kind
	// Cause is the fault, as in the repair record; empty if there is none.
	Cause Cause
	// Removed: the frame was removed on purpose, which is no fault.
	Removed bool
	// Opened: this pass created the repair record. Healed: it removed one.
	Opened, Healed bool
}

// IsManifestKey reports whether key is one that Reconcile accepts: of an identity manifest or a quarantine record.
func IsManifestKey(key string) bool {
	if _, err := layout.ParseAccepted(key); err == nil {
		return true
	}
	_, _, err := layout.ParseQuarantine(key)
	return err == nil
}

// Reconcile reads the manifest under key (an identity manifest or a quarantine record) and
// creates what is missing of its derived state. A fault of the manifest or its blob is in
// the Result. An error means that the pass was not completed: it wraps an error of objstore
// or ErrUnknownKey; objstore.ErrNotFound says that there is no such manifest.
func (r *Reconciler) Reconcile(ctx context.Context, key string, o Options) (Result, error) {
	if id, err := layout.ParseAccepted(key); err == nil {
		return r.accepted(ctx, key, id, o)
	}
	if id, d, err := layout.ParseQuarantine(key); err == nil {
		return r.quarantined(ctx, key, id, d, o)
	}
	return Result{}, fmt.Errorf("reconcile %q: %w", key, ErrUnknownKey)
}

func (r *Reconciler) accepted(ctx context.Context, key string, id identity.Batch, o Options) (Result, error) {
	res := Result{Key: key}
	rec := repair{key: layout.Repair(id), manifestKey: key}
	authority, err := r.authority(ctx)
	if err != nil {
		return res, err
	}
	body, err := r.read(ctx, key)
	if err != nil && !objstore.Unreadable(err) {
		return res, err
	}
	m, perr := accept.ParseManifest(body)
	switch {
	case err != nil: // too long to be a manifest, or damaged
		rec.cause, rec.detail = CauseBadManifest, err.Error()
	case perr != nil:
		rec.cause, rec.detail = causeOf(perr), perr.Error()
	case m.Identity != id:
		rec.cause, rec.detail = CauseBadManifest, fmt.Sprintf("identity %s under the key of another", m.Identity)
	case authority != "" && m.AuthorityID != authority:
		rec.cause, rec.detail = CauseForeign, fmt.Sprintf("authority %q, want %q", m.AuthorityID, authority)
	}
	if rec.cause != "" {
		// Nothing is derived from a manifest that can't be trusted: derived keys are never removed.
		return res, r.updateRepairRecord(ctx, &res, rec, o)
	}
	res.Bytes, res.Manifest = body, &m
	rec.digest, rec.blobKey = m.FrameSHA256, m.FrameKey()
	if !m.Inline { // else the frame's hash was checked with the record
		if rec.cause, rec.detail, err = r.checkBlob(ctx, m.RawBlobKey, m.FrameSHA256, m.FrameBytes, o.Read); err != nil {
			return res, err
		}
	}
	// A frame is logged as removed before it is deleted, so this question comes after the blob was
	// found missing, or both could miss a removal that happens in between.
	if rec.cause != "" && r.Removed != nil {
		if res.Removed, err = r.Removed(ctx, id); err != nil {
			return res, err
		}
		if res.Removed {
			rec.cause, rec.detail = "", ""
		}
	}
	// The repair record comes before the derived keys. So where accepted-by-time exists, the
	// blob was checked, and a fault of it is on record.
	if err := r.updateRepairRecord(ctx, &res, rec, o); err != nil {
		return res, err
	}
	return res, r.derive(ctx, &res, DerivedOf(m, body), o)
}

func (r *Reconciler) quarantined(ctx context.Context, key string, id identity.Batch, d identity.Digest, o Options) (Result, error) {
	res := Result{Key: key}
	rec := repair{key: layout.RepairQuarantine(id, d), manifestKey: key, digest: d}
	authority, err := r.authority(ctx)
	if err != nil {
		return res, err
	}
	body, err := r.read(ctx, key)
	if err != nil && !objstore.Unreadable(err) {
		return res, err
	}
	c, perr := accept.ParseConflictRecord(body)
	switch {
	case err != nil:
		rec.cause, rec.detail = CauseBadManifest, err.Error()
	case perr != nil:
		rec.cause, rec.detail = causeOf(perr), perr.Error()
	case c.Identity != id || c.SubmittedSHA256 != d:
		rec.cause, rec.detail = CauseBadManifest, fmt.Sprintf("conflict %s %s under the key of another", c.Identity, c.SubmittedSHA256)
	case authority != "" && c.AuthorityID != authority:
		rec.cause, rec.detail = CauseForeign, fmt.Sprintf("authority %q, want %q", c.AuthorityID, authority)
	}
	if rec.cause != "" {
		return res, r.updateRepairRecord(ctx, &res, rec, o)
	}
	res.Bytes, res.Conflict = body, &c
	rec.blobKey = c.FrameKey()
	if !c.Inline() {
		if rec.cause, rec.detail, err = r.checkBlob(ctx, c.SubmittedBlobKey, d, 0, o.Read); err != nil {
			return res, err
		}
	}
	if err := r.updateRepairRecord(ctx, &res, rec, o); err != nil {
		return res, err
	}
	return res, r.derive(ctx, &res, derivedOfConflict(c, key), o)
}

// causeOf returns the cause for a record that does not parse.
func causeOf(err error) Cause {
	if errors.Is(err, record.ErrNewerVersion) {
		return CauseNewer
	}
	return CauseBadManifest
}

// read reads a record, and the frame that it may carry. The error is objstore.Unreadable if it is damaged or too long to be a record.
func (r *Reconciler) read(ctx context.Context, key string) ([]byte, error) {
	body, _, err := r.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxObjectBytes})
	return body, err
}
