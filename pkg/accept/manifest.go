package accept

import (
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ManifestSchema names the identity manifest's JSON schema.
const ManifestSchema = "lightmetrics.accepted_batch.v1"

// Manifest is the identity manifest: the one object whose creation is the acceptance
// of a batch. docs/format/manifests.md has its JSON, byte-exact.
type Manifest struct {
	AuthorityID string
	Identity    identity.Batch
	FrameSHA256 identity.Digest
	FrameBytes  uint64
	// RawBlobKey is the generation that the accepting attempt had verified: where to
	// look first. Any generation whose bytes hash to FrameSHA256 is as good.
	RawBlobKey string
	// AcceptedAt by the collector's clock, Unix nanoseconds, not negative.
	AcceptedAt   int64
	CollectorID  string
	WireVersion  uint32
	FrameVersion uint32
	// AttemptID is 32 hex digits, random per Accept call, so that a collector knows
	// its own write after a lost reply.
	AttemptID string
	// RecordCount is Identity.Count().
	RecordCount uint64
	// MinTime and MaxTime of the samples, Unix nanoseconds.
	MinTime, MaxTime int64
	// Traceparent is W3C trace context; empty is absent.
	Traceparent string
}

// AcceptedTime is AcceptedAt in UTC.
func (m Manifest) AcceptedTime() time.Time { return time.Unix(0, m.AcceptedAt).UTC() }

// Marshal writes the canonical JSON: equal manifests are equal bytes.
func (m Manifest) Marshal() []byte {
	e := encoder{b: make([]byte, 0, 1024)}
	e.begin(ManifestSchema)
	e.text("authority_id", m.AuthorityID)
	e.batch(m.Identity)
	e.digest("frame_sha256", m.FrameSHA256)
	e.uint("frame_bytes", m.FrameBytes)
	e.text("raw_blob_key", m.RawBlobKey)
	e.int("accepted_at_unix_ns", m.AcceptedAt)
	e.text("collector_id", m.CollectorID)
	e.uint("wire_version", uint64(m.WireVersion))
	e.uint("frame_version", uint64(m.FrameVersion))
	e.text("attempt_id", m.AttemptID)
	e.uint("record_count", m.RecordCount)
	e.int("min_time_unix_ns", m.MinTime)
	e.int("max_time_unix_ns", m.MaxTime)
	if m.Traceparent != "" {
		e.text("traceparent", m.Traceparent)
	}
	return e.end()
}

// ParseManifest reads canonical JSON and nothing else; every error wraps ErrCorruptRecord.
func ParseManifest(b []byte) (Manifest, error) {
	d := newDecoder("identity manifest", ManifestSchema, b)
	var m Manifest
	m.AuthorityID = d.nonEmpty("authority_id", MaxNameBytes)
	m.Identity = d.batch()
	m.FrameSHA256 = d.digest("frame_sha256")
	m.FrameBytes = d.uint("frame_bytes")
	m.RawBlobKey = d.text("raw_blob_key", maxKeyBytes)
	d.blobKey("raw_blob_key", m.RawBlobKey, m.FrameSHA256)
	m.AcceptedAt = d.unixNano("accepted_at_unix_ns")
	m.CollectorID = d.nonEmpty("collector_id", MaxNameBytes)
	m.WireVersion = d.uint32("wire_version")
	m.FrameVersion = d.uint32("frame_version")
	m.AttemptID = d.text("attempt_id", attemptIDDigits)
	m.RecordCount = d.uint("record_count")
	m.MinTime = d.int("min_time_unix_ns")
	m.MaxTime = d.int("max_time_unix_ns")
	if d.has("traceparent") {
		m.Traceparent = d.text("traceparent", traceparentBytes)
		if !ValidTraceparent(m.Traceparent) {
			d.fail("traceparent is not W3C trace context")
		}
	}
	switch {
	case d.err != nil:
	case !validAttemptID(m.AttemptID):
		d.fail("attempt_id is not %d hex digits", attemptIDDigits)
	case m.FrameBytes == 0:
		d.fail("frame_bytes is 0")
	case m.RecordCount != m.Identity.Count():
		d.fail("record_count is %d, the identity has %d", m.RecordCount, m.Identity.Count())
	case m.MaxTime < m.MinTime:
		d.fail("max_time_unix_ns is before min_time_unix_ns")
	}
	if err := d.end(); err != nil {
		return Manifest{}, err
	}
	return m, nil
}

const traceparentBytes = 55

// ValidTraceparent reports whether s is W3C trace context: version-traceid-parentid-flags in lower-case hex.
func ValidTraceparent(s string) bool {
	if len(s) != traceparentBytes {
		return false
	}
	for i := range len(s) {
		if dash := i == 2 || i == 35 || i == 52; dash != (s[i] == '-') || !dash && !isHex(s[i]) {
			return false
		}
	}
	return true
}

func validAttemptID(s string) bool {
	if len(s) != attemptIDDigits {
		return false
	}
	for i := range len(s) {
		if !isHex(s[i]) {
			return false
		}
	}
	return true
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
