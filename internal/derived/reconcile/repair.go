package reconcile

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// RepairKind is the kind of the repair record.
var RepairKind = record.Kind{Schema: "lightmetrics.repair.v1", Title: "repair record", MaxBytes: 16 << 10}

// Cause is a fault of a manifest or its blob.
type Cause string

// Causes.
const (
	CauseMissing     Cause = "missing_blob"      // the frame has no generation
	CauseCorrupt     Cause = "corrupt_blob"      // there are generations, but none has the frame's hash
	CauseBadManifest Cause = "bad_manifest"      // the record can't be read, or is under the key of another identity
	CauseForeign     Cause = "foreign_authority" // the record belongs to another acceptance authority
	CauseNewer       Cause = "newer_release"     // the record is of a newer release, and nothing is wrong with it
)

// Causes lists all of them.
func Causes() []Cause {
	return []Cause{CauseMissing, CauseCorrupt, CauseBadManifest, CauseForeign, CauseNewer}
}

// RepairRecord exists under repair/v1/ while a manifest or its blob has a fault; operators read it.
type RepairRecord struct {
	ManifestKey string          `json:"manifest_key"`
	Cause       Cause           `json:"cause"`
	Detail      string          `json:"detail"`
	FrameSHA256 identity.Digest `json:"frame_sha256"` // zero for a bad manifest
	RawBlobKey  string          `json:"raw_blob_key"`
	// FirstSeen by the clock of the reconciler that wrote it, Unix nanoseconds.
	FirstSeen    int64  `json:"first_seen_unix_ns"`
	ReconcilerID string `json:"reconciler_id"`
}

// Marshal writes the canonical JSON.
func (r RepairRecord) Marshal() []byte { return RepairKind.Marshal(r) }

// ParseRepair reads a repair record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseRepair(b []byte) (r RepairRecord, err error) { return r, RepairKind.Unmarshal(b, &r) }

type repair struct {
	key, manifestKey string
	cause            Cause
	detail           string
	digest           identity.Digest
	blobKey          string
}

// updateRepairRecord creates, keeps, corrects or removes the repair record.
func (r *Reconciler) updateRepairRecord(ctx context.Context, res *Result, p repair, o Options) error {
	res.Cause = p.cause
	if p.cause == "" {
		// Without an open record there is nothing to remove. A DELETE for each manifest would be the
		// most expensive request of an audit.
		if !o.Recheck {
			return nil
		}
		if err := r.Store.Delete(ctx, p.key); err != nil {
			return err
		}
		res.Healed = true
		return nil
	}
	rec := RepairRecord{
		ManifestKey: p.manifestKey, Cause: p.cause, Detail: clip(p.detail),
		FrameSHA256: p.digest, RawBlobKey: p.blobKey, FirstSeen: r.Now().UnixNano(), ReconcilerID: r.ID,
	}
	_, err := r.Store.Create(ctx, p.key, rec.Marshal(), objstore.PutOptions{ContentType: "application/json"})
	if err == nil {
		res.Opened = true
		return nil
	}
	if !errors.Is(err, objstore.ErrExists) {
		return err
	}
	return r.correct(ctx, p.key, rec)
}

// correct updates an existing record to the present cause and keeps its first-seen time.
func (r *Reconciler) correct(ctx context.Context, key string, rec RepairRecord) error {
	old, info, err := record.Read(ctx, r.Store, key, RepairKind, ParseRepair)
	if errors.Is(err, objstore.ErrNotFound) || errors.Is(err, record.ErrNewerVersion) {
		return nil // removed by another reconciler, and the next pass checks again; or a newer release keeps it
	}
	if err != nil && !record.Unreadable(err) {
		return err
	}
	if err == nil {
		if old.Cause == rec.Cause && old.ManifestKey == rec.ManifestKey {
			return nil
		}
		rec.FirstSeen = old.FirstSeen
	}
	if info.ETag == "" {
		if info, err = r.Store.Head(ctx, key); err != nil {
			return err
		}
	}
	_, err = r.Store.Replace(ctx, key, rec.Marshal(), info.ETag, objstore.PutOptions{ContentType: "application/json"})
	if errors.Is(err, objstore.ErrPreconditionFailed) {
		return nil // another reconciler corrected it
	}
	return err
}

func clip(s string) string {
	const limit = 2000
	if len(s) > limit {
		s = s[:limit]
	}
	return s
}
