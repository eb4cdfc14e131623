package accept

import (
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/layout"
)

// ConflictSchema names the quarantine record's JSON schema.
const ConflictSchema = "lightmetrics.identity_conflict.v1"

// ConflictRecord is the quarantine record: a submitted frame that lost its identity
// to another. It is the reference that keeps the loser's blob.
type ConflictRecord struct {
	AuthorityID     string
	Identity        identity.Batch
	AcceptedBlobKey string // as the accepted manifest names it
	AcceptedSHA256  identity.Digest
	// SubmittedBlobKey is the generation that was verified; any generation is as good.
	SubmittedBlobKey    string
	SubmittedSHA256     identity.Digest
	AcceptedManifestKey string
	// ObservedAt by the collector's clock, Unix nanoseconds, not negative.
	ObservedAt  int64
	CollectorID string
}

// Marshal writes the canonical JSON.
func (c ConflictRecord) Marshal() []byte {
	e := encoder{b: make([]byte, 0, 1024)}
	e.begin(ConflictSchema)
	e.text("authority_id", c.AuthorityID)
	e.batch(c.Identity)
	e.text("accepted_blob_key", c.AcceptedBlobKey)
	e.digest("accepted_sha256", c.AcceptedSHA256)
	e.text("submitted_blob_key", c.SubmittedBlobKey)
	e.digest("submitted_sha256", c.SubmittedSHA256)
	e.text("accepted_manifest_key", c.AcceptedManifestKey)
	e.int("observed_at_unix_ns", c.ObservedAt)
	e.text("collector_id", c.CollectorID)
	return e.end()
}

// ParseConflictRecord reads canonical JSON and nothing else; every error wraps ErrCorruptRecord.
func ParseConflictRecord(b []byte) (ConflictRecord, error) {
	d := newDecoder("quarantine record", ConflictSchema, b)
	var c ConflictRecord
	c.AuthorityID = d.nonEmpty("authority_id", MaxNameBytes)
	c.Identity = d.batch()
	c.AcceptedBlobKey = d.text("accepted_blob_key", maxKeyBytes)
	c.AcceptedSHA256 = d.digest("accepted_sha256")
	c.SubmittedBlobKey = d.text("submitted_blob_key", maxKeyBytes)
	c.SubmittedSHA256 = d.digest("submitted_sha256")
	c.AcceptedManifestKey = d.text("accepted_manifest_key", maxKeyBytes)
	c.ObservedAt = d.unixNano("observed_at_unix_ns")
	c.CollectorID = d.nonEmpty("collector_id", MaxNameBytes)
	if d.err == nil {
		d.blobKey("accepted_blob_key", c.AcceptedBlobKey, c.AcceptedSHA256)
		d.blobKey("submitted_blob_key", c.SubmittedBlobKey, c.SubmittedSHA256)
		if c.AcceptedSHA256 == c.SubmittedSHA256 {
			d.fail("both frames have the hash %s", c.AcceptedSHA256)
		}
		if c.AcceptedManifestKey != layout.Accepted(c.Identity) {
			d.fail("accepted_manifest_key %q is not that of %s", c.AcceptedManifestKey, c.Identity)
		}
	}
	if err := d.end(); err != nil {
		return ConflictRecord{}, err
	}
	return c, nil
}
