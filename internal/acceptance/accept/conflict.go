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
	AuthorityID string
	Identity    identity.Batch
	// AcceptedBlobKey as the accepted manifest names it; empty where that carries its frame.
	AcceptedBlobKey string
	AcceptedSHA256  identity.Digest
	// SubmittedBlobKey is the generation that the call verified. Any other with the same bytes serves readers as well.
	// Empty where this record carries the frame, whose length is SubmittedBytes; else that is 0.
	SubmittedBlobKey    string
	SubmittedSHA256     identity.Digest
	SubmittedBytes      uint64
	AcceptedManifestKey string
	// ObservedAt by the collector's clock, Unix nanoseconds, not negative.
	ObservedAt  int64
	CollectorID string
	// Met is the accepted identity, if it is another one of the boot that shares sequence numbers with this one; else zero. Where
	// several regions accept, an identity whose numbers another one has is refused too. AcceptedManifestKey is not that of Met.
	Met identity.Batch
}

// ManifestKey is the key of the accepted identity's manifest, in the bucket of the region that accepted it.
func (c ConflictRecord) ManifestKey() string {
	if c.Met != (identity.Batch{}) {
		return layout.Accepted(c.Met)
	}
	return c.AcceptedManifestKey
}

// Marshal writes the canonical JSON; of a record that carries its frame without it, see MarshalWith.
func (c ConflictRecord) Marshal() []byte {
	var e record.Writer
	kind, key := ConflictKind, e.Text
	if c.AcceptedBlobKey == "" || c.Inline() {
		kind, key = InlineConflictKind, e.OptionalText
	}
	e.Begin(kind, 1024)
	e.Text("authority_id", c.AuthorityID)
	e.Batch(c.Identity)
	key("accepted_blob_key", c.AcceptedBlobKey)
	e.Digest("accepted_sha256", c.AcceptedSHA256)
	key("submitted_blob_key", c.SubmittedBlobKey)
	e.Digest("submitted_sha256", c.SubmittedSHA256)
	if c.Inline() {
		e.Uint("submitted_bytes", c.SubmittedBytes)
	}
	e.Text("accepted_manifest_key", c.AcceptedManifestKey)
	e.Int("observed_at_unix_ns", c.ObservedAt)
	e.Text("collector_id", c.CollectorID)
	if c.Met != (identity.Batch{}) {
		e.Uint("accepted_seq_start", c.Met.SeqStart)
		e.Uint("accepted_seq_end", c.Met.SeqEnd)
	}
	return e.End()
}

// ParseConflictRecord reads the object of a record; a frame that it carries must have the length and the hash that
// the record says. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseConflictRecord(b []byte) (ConflictRecord, error) {
	kind, err := record.OneOf(b, InlineConflictKind, ConflictKind)
	if err != nil {
		return ConflictRecord{}, err
	}
	var frame []byte
	var c ConflictRecord
	head, carries := b, false
	if kind.Schema == InlineConflictKind.Schema {
		head, frame, carries = cutFrame(b)
	}
	d := record.NewReader(kind, head)
	key := d.Text
	if kind.Schema == InlineConflictKind.Schema {
		key = d.OptionalText
	}
	c.AuthorityID = d.NonEmpty("authority_id", MaxNameBytes)
	c.Identity = d.Batch()
	c.AcceptedBlobKey = key("accepted_blob_key", maxKeyBytes)
	c.AcceptedSHA256 = d.Digest("accepted_sha256")
	c.SubmittedBlobKey = key("submitted_blob_key", maxKeyBytes)
	c.SubmittedSHA256 = d.Digest("submitted_sha256")
	if d.Err() == nil && kind.Schema == InlineConflictKind.Schema {
		switch {
		case c.Inline():
			c.SubmittedBytes = d.Uint("submitted_bytes")
			checkFrame(d, frame, c.SubmittedBytes, c.SubmittedSHA256)
		// One value has one form: a record that refers to two blobs is of the first version.
		case c.AcceptedBlobKey != "" || carries:
			d.Fail("it names the blob of the submitted frame, and is of the version for records that carry it")
		}
	}
	c.AcceptedManifestKey = d.Text("accepted_manifest_key", maxKeyBytes)
	c.ObservedAt = d.UnixNano("observed_at_unix_ns")
	c.CollectorID = d.NonEmpty("collector_id", MaxNameBytes)
	if start, end, there := d.OptionalPair("accepted_seq_start", "accepted_seq_end"); there {
		c.Met = identity.Batch{Agent: c.Identity.Agent, Boot: c.Identity.Boot, SeqStart: start, SeqEnd: end}
		if err := c.Met.Validate(); d.Err() == nil && (err != nil || c.Met == c.Identity || !c.Met.Intersects(c.Identity)) {
			d.Fail("the accepted numbers %d to %d are none that meet %s", start, end, c.Identity)
		}
	}
	if d.Err() == nil {
		if c.AcceptedBlobKey != "" || kind.Schema == ConflictKind.Schema {
			checkBlobKey(d, "accepted_blob_key", c.AcceptedBlobKey, c.AcceptedSHA256)
		}
		if !c.Inline() || kind.Schema == ConflictKind.Schema {
			checkBlobKey(d, "submitted_blob_key", c.SubmittedBlobKey, c.SubmittedSHA256)
		}
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
