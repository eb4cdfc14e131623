package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// Schemas of the derived objects. accepted-by-time holds the manifest's own bytes.
const (
	AcceptedByBlobSchema   = "lightmetrics.accepted_by_blob.v1"
	RawBlobByTimeSchema    = "lightmetrics.raw_blob_by_time.v1"
	QuarantineByBlobSchema = "lightmetrics.quarantine_by_blob.v1"
)

// Derived is one object that follows from a manifest. Key and Body are functions of
// the manifest alone, so that whoever writes it first writes the same.
type Derived struct {
	Kind Kind
	Key  string
	Body []byte
}

// reference is the body of the reverse references. All its text is keys and hex,
// so encoding/json has one form for it.
type reference struct {
	Schema       string `json:"schema"`
	ManifestKey  string `json:"manifest_key"`
	FrameSHA256  string `json:"frame_sha256"`
	FrameBytes   uint64 `json:"frame_bytes,omitempty"`
	RawBlobKey   string `json:"raw_blob_key"`
	AcceptedAtNS int64  `json:"accepted_at_unix_ns,omitempty"`
	ObservedAtNS int64  `json:"observed_at_unix_ns,omitempty"`
}

// DerivedOf lists what follows from an identity manifest, in the order of writing. body is
// the manifest as it is stored.
func DerivedOf(m accept.Manifest, body []byte) []Derived {
	at := m.AcceptedTime()
	ref := reference{
		Schema:      AcceptedByBlobSchema,
		ManifestKey: layout.Accepted(m.Identity),
		FrameSHA256: m.FrameSHA256.String(), FrameBytes: m.FrameBytes, RawBlobKey: m.RawBlobKey,
		AcceptedAtNS: m.AcceptedAt,
	}
	byTime := ref
	byTime.Schema = RawBlobByTimeSchema
	return []Derived{
		{AcceptedByBlob, layout.AcceptedByBlob(m.FrameSHA256, m.Identity), encode(ref)},
		{RawBlobByTime, layout.RawBlobByTime(at, m.FrameSHA256), encode(byTime)},
		{AcceptedByTime, layout.AcceptedByTime(at, m.Identity), body},
	}
}

func derivedOfConflict(c accept.ConflictRecord, key string) []Derived {
	return []Derived{{QuarantineByBlob, layout.QuarantineByBlob(c.SubmittedSHA256, c.Identity), encode(reference{
		Schema: QuarantineByBlobSchema, ManifestKey: key,
		FrameSHA256: c.SubmittedSHA256.String(), RawBlobKey: c.SubmittedBlobKey, ObservedAtNS: c.ObservedAt,
	})}}
}

func encode(r reference) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("encode reference: %v", err)) // strings and numbers only
	}
	return b
}

func (r *Reconciler) derive(ctx context.Context, res *Result, ds []Derived, o Options) error {
	for _, d := range ds {
		if o.Look {
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
			return err // unknown and conflict too: the whole pass is done again
		}
	}
	return nil
}
