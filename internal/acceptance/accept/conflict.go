package accept

import (
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ConflictKind is the kind of the quarantine record.
var ConflictKind = record.Kind{Schema: "lightmetrics.identity_conflict.v1", Title: "quarantine record", MaxBytes: MaxRecordBytes}

// ConflictRecord is the quarantine record: a submitted frame that lost its identity
// to another. It is the reference that keeps the loser's blob.
type ConflictRecord struct {
	AuthorityID     string
	Identity        identity.Batch
	AcceptedBlobKey string // as the accepted manifest names it
	AcceptedSHA256  identity.Digest
	// SubmittedBlobKey is the generation that the call verified. Any other with the same bytes serves readers as well.
	SubmittedBlobKey    string
	SubmittedSHA256     identity.Digest
	AcceptedManifestKey string
	// ObservedAt by the collector's clock, Unix nanoseconds, not negative.
	ObservedAt  int64
	CollectorID string
}

// Marshal writes the canonical JSON.
func (c ConflictRecord) Marshal() []byte {
	var e record.Writer
	e.Begin(ConflictKind, 1024)
	e.Text("authority_id", c.AuthorityID)
	e.Batch(c.Identity)
	e.Text("accepted_blob_key", c.AcceptedBlobKey)
	e.Digest("accepted_sha256", c.AcceptedSHA256)
	e.Text("submitted_blob_key", c.SubmittedBlobKey)
	e.Digest("submitted_sha256", c.SubmittedSHA256)
	e.Text("accepted_manifest_key", c.AcceptedManifestKey)
	e.Int("observed_at_unix_ns", c.ObservedAt)
	e.Text("collector_id", c.CollectorID)
	return e.End()
}

// ParseConflictRecord reads the record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseConflictRecord(b []byte) (ConflictRecord, error) {
	d := record.NewReader(ConflictKind, b)
	var c ConflictRecord
	c.AuthorityID = d.NonEmpty("authority_id", MaxNameBytes)
	c.Identity = d.Batch()
	c.AcceptedBlobKey = d.Text("accepted_blob_key", maxKeyBytes)
	c.AcceptedSHA256 = d.Digest("accepted_sha256")
	c.SubmittedBlobKey = d.Text("submitted_blob_key", maxKeyBytes)
	c.SubmittedSHA256 = d.Digest("submitted_sha256")
	c.AcceptedManifestKey = d.Text("accepted_manifest_key", maxKeyBytes)
	c.ObservedAt = d.UnixNano("observed_at_unix_ns")
	c.CollectorID = d.NonEmpty("collector_id", MaxNameBytes)
	if d.Err() == nil {
		checkBlobKey(d, "accepted_blob_key", c.AcceptedBlobKey, c.AcceptedSHA256)
		checkBlobKey(d, "submitted_blob_key", c.SubmittedBlobKey, c.SubmittedSHA256)
		// Equal bytes are a duplicate. Garbage collection would also take the accepted blob for a
		// quarantined one.
		if c.AcceptedSHA256 == c.SubmittedSHA256 {
			d.Fail("both frames have the hash %s", c.AcceptedSHA256)
		}
		if c.AcceptedManifestKey != layout.Accepted(c.Identity) {
			d.Fail("accepted_manifest_key %q is not that of %s", c.AcceptedManifestKey, c.Identity)
		}
	}
	if err := d.End(); err != nil {
		return ConflictRecord{}, err
	}
	return c, nil
}
