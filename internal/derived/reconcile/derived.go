package reconcile

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Kinds of the derived objects. accepted-by-time holds the manifest's own bytes.
var (
	AcceptedByBlobKind   = record.Kind{Schema: "lightmetrics.accepted_by_blob.v1", Title: "reference of a blob to its manifest", MaxBytes: accept.MaxRecordBytes}
	RawBlobByTimeKind    = record.Kind{Schema: "lightmetrics.raw_blob_by_time.v1", Title: "index entry of a blob", MaxBytes: accept.MaxRecordBytes}
	QuarantineByBlobKind = record.Kind{Schema: "lightmetrics.quarantine_by_blob.v1", Title: "reference of a blob to its quarantine record", MaxBytes: accept.MaxRecordBytes}
)

// Derived is one object that is derived from a manifest. Key and Body depend only on the
// manifest, so all reconcilers write the same bytes.
type Derived struct {
	Kind Kind
	Key  string
	Body []byte
}

// reference is the body of the reverse references.
type reference struct {
	ManifestKey  string          `json:"manifest_key"`
	FrameSHA256  identity.Digest `json:"frame_sha256"`
	FrameBytes   uint64          `json:"frame_bytes,omitempty"`
	RawBlobKey   string          `json:"raw_blob_key"`
	AcceptedAtNS int64           `json:"accepted_at_unix_ns,omitempty"`
	ObservedAtNS int64           `json:"observed_at_unix_ns,omitempty"`
}

// DerivedOf lists the objects that are derived from an identity manifest, in the order of writing. body is
// the manifest as it is stored; the frame that it may carry is not copied.
func DerivedOf(m accept.Manifest, body []byte) []Derived {
	at := m.AcceptedTime()
	ref := reference{
		ManifestKey: layout.Accepted(m.Identity),
		FrameSHA256: m.FrameSHA256, FrameBytes: m.FrameBytes, RawBlobKey: m.FrameKey(),
		AcceptedAtNS: m.AcceptedAt,
	}
	return []Derived{
		{AcceptedByBlob, layout.AcceptedByBlob(m.FrameSHA256, m.Identity), AcceptedByBlobKind.Marshal(ref)},
		{RawBlobByTime, layout.RawBlobByTime(at, m.FrameSHA256), RawBlobByTimeKind.Marshal(ref)},
		{AcceptedByTime, layout.AcceptedByTime(at, m.Identity), accept.RecordOf(body)},
	}
}

func derivedOfConflict(c accept.ConflictRecord, key string) []Derived {
	return []Derived{{QuarantineByBlob, layout.QuarantineByBlob(c.SubmittedSHA256, c.Identity), QuarantineByBlobKind.Marshal(reference{
		ManifestKey: key, FrameSHA256: c.SubmittedSHA256, RawBlobKey: c.FrameKey(), ObservedAtNS: c.ObservedAt,
	})}}
}

// derive creates the objects of ds that are missing, in order.
func (r *Reconciler) derive(ctx context.Context, res *Result, ds []Derived, o Options) error {
	if r.KeysInJournal {
		return nil
	}
	for _, d := range ds {
		if o.HeadFirst {
			_, err := r.Store.Head(ctx, d.Key)
			if err == nil {
				continue
			}
			if !errors.Is(err, objstore.ErrNotFound) {
				return err
			}
		}
		_, err := r.Store.Create(ctx, d.Key, d.Body, objstore.PutOptions{ContentType: "application/json"})
		switch {
		case err == nil:
			res.Created = append(res.Created, d.Kind)
		case !errors.Is(err, objstore.ErrExists):
			return err // also for unknown and conflict: the caller repeats the whole pass
		}
	}
	return nil
}
