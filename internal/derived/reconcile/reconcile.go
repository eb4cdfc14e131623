// Package reconcile brings the derived state of one manifest to where it must be:
// look, compare, repair. Every step is harmless to repeat, in any order of
// manifests, by any number of reconcilers at once. The order of the writes and the
// reasons are in docs/protocol/reconcile.md.
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

// ErrUnknownKey: the key is neither an identity manifest's nor a quarantine record's.
var ErrUnknownKey = errors.New("not a key of a manifest")

// Kind names a derived key.
type Kind string

// Kinds of derived keys, in the order in which they are written.
const (
	AcceptedByBlob   Kind = "accepted_by_blob"
	RawBlobByTime    Kind = "raw_blob_by_time"
	AcceptedByTime   Kind = "accepted_by_time" // last: where it is, the others are
	QuarantineByBlob Kind = "quarantine_by_blob"
)

// Kinds lists all of them.
func Kinds() []Kind { return []Kind{AcceptedByBlob, RawBlobByTime, AcceptedByTime, QuarantineByBlob} }

// Reconciler does the work. All fields but Store and Now are optional.
type Reconciler struct {
	Store objstore.Store
	// AuthorityID that manifests must carry; empty takes the store's own.
	AuthorityID string
	// Now stamps repair records.
	Now func() time.Time
	// ID names this reconciler in repair records.
	ID string
	// Removed says whether an operator removed the batch's frame on purpose; it is asked
	// after the frame was found missing. Nil is never.
	Removed func(ctx context.Context, id identity.Batch) (bool, error)

	own atomic.Pointer[string] // the store's authority record, once read
}

// Options of one pass.
type Options struct {
	// Look heads each derived key before it creates it: cheaper where most are
	// there already (audits). Without it the conditional create is the look.
	Look bool
	// Recheck says that a repair record is open for this manifest: remove it if all is well.
	Recheck bool
}

// Result of one pass that ended.
type Result struct {
	Key   string
	Bytes []byte
	// Manifest is set for identity manifests whose record could be read.
	Manifest *accept.Manifest
	// Conflict is set for quarantine records that could be read.
	Conflict *accept.ConflictRecord
	// Created are the derived keys that this pass wrote.
	Created []Kind
	// Cause is what is wrong and stands in the repair record; empty when all is well.
	Cause Cause
	// Removed: the frame is gone, as an operator ordered. All is well.
	Removed bool
	// Opened: the repair record was not there before. Healed: it was removed.
	Opened, Healed bool
}

// WasCreated reports whether this pass wrote the derived key.
func (r Result) WasCreated(k Kind) bool {
	for _, c := range r.Created {
		if c == k {
			return true
		}
	}
	return false
}

// Reconcile reads the manifest under key (an identity manifest or a quarantine
// record) and repairs what is derived from it. What is wrong with the manifest or
// its blob is in the Result. An error means that the pass did not end: it wraps an
// objstore sentinel or ErrUnknownKey; objstore.ErrNotFound says that there is no such manifest.
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
		// Nothing is derived from what can't be trusted.
		return res, r.updateRepairRecord(ctx, &res, rec, o)
	}
	res.Bytes, res.Manifest = body, &m
	rec.digest, rec.blobKey = m.FrameSHA256, m.RawBlobKey
	if rec.cause, rec.detail, err = r.checkBlob(ctx, m.RawBlobKey, m.FrameSHA256, m.FrameBytes); err != nil {
		return res, err
	}
	if rec.cause != "" && r.Removed != nil {
		if res.Removed, err = r.Removed(ctx, id); err != nil {
			return res, err
		}
		if res.Removed {
			rec.cause, rec.detail = "", ""
		}
	}
	// Before the derived keys: where accepted-by-time is, the blob was looked at.
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
	rec.blobKey = c.SubmittedBlobKey
	if rec.cause, rec.detail, err = r.checkBlob(ctx, c.SubmittedBlobKey, d, 0); err != nil {
		return res, err
	}
	if err := r.updateRepairRecord(ctx, &res, rec, o); err != nil {
		return res, err
	}
	return res, r.derive(ctx, &res, derivedOfConflict(c, key), o)
}

// causeOf says what is wrong with a record that does not parse.
func causeOf(err error) Cause {
	if errors.Is(err, record.ErrNewerVersion) {
		return CauseNewer
	}
	return CauseBadManifest
}

// read gets a record; objstore.Unreadable when it is too long to be one, or damaged.
func (r *Reconciler) read(ctx context.Context, key string) ([]byte, error) {
	body, _, err := r.Store.Get(ctx, key, objstore.GetOptions{Limit: accept.MaxRecordBytes})
	return body, err
}
