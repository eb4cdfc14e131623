package accept

import (
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ManifestKind is the kind of the identity manifest.
var ManifestKind = record.Kind{Schema: "lightmetrics.accepted_batch.v1", Title: "identity manifest", MaxBytes: MaxRecordBytes}

// Manifest is the identity manifest: the one object whose creation is the acceptance
// of a batch. docs/format/manifests.md has its JSON, byte-exact.
type Manifest struct {
	AuthorityID string
	Identity    identity.Batch
	FrameSHA256 identity.Digest
	FrameBytes  uint64
	// RawBlobKey is the generation that the accepting call had verified: where a reader tries
	// first. It may have been collected since; any generation whose bytes hash to FrameSHA256 will do. Empty with Inline.
	RawBlobKey string
	// Inline: the manifest's object carries the frame behind the record, and no blob is needed.
	Inline bool
	// AcceptedAt by the collector's clock, Unix nanoseconds, not negative.
	AcceptedAt   int64
	CollectorID  string
	WireVersion  uint32
	FrameVersion uint32
	// AttemptID is 32 hex digits, random per Accept call, so that a collector
	// recognises its own write after a lost reply.
	AttemptID string
	// RecordCount is Identity.Count().
	RecordCount uint64
	// MinTime and MaxTime of the samples, Unix nanoseconds.
	MinTime, MaxTime int64
	// Traceparent is W3C trace context; empty is absent.
	Traceparent string
	// HomeRegion is the region that wrote the manifest, and ClaimEpoch and ClaimFence are the stamp of the claim that it was
	// written under, where one linearizer serves several regions; empty and 0 are absent.
	HomeRegion string
	ClaimEpoch uint64
	ClaimFence uint64
}

// Stamp of the claim that the manifest was written under; zero of one that needed none.
func (m Manifest) Stamp() accepted.Stamp {
	return accepted.Stamp{Epoch: m.ClaimEpoch, Fence: m.ClaimFence}
}

// NewManifest makes the manifest of a submission whose frame is in a generation of its blob. The
// mode with a spool and that without one both use it, so that their manifests have the same
// fields. Errors are those of random.
func (s Submission) NewManifest(generation uint32, authorityID, collectorID string, clock Clock, random io.Reader) (Manifest, error) {
	var attempt [attemptIDDigits / 2]byte
	if _, err := io.ReadFull(random, attempt[:]); err != nil {
		return Manifest{}, fmt.Errorf("read randomness: %w", err)
	}
	m := Manifest{
		AuthorityID: authorityID, Identity: s.Identity, FrameSHA256: s.SHA256,
		FrameBytes: uint64(len(s.Frame)), RawBlobKey: layout.Blob(s.SHA256, generation),
		AcceptedAt: max(clock.Now().UnixNano(), 0), CollectorID: collectorID,
		WireVersion: s.WireVersion, FrameVersion: s.FrameVersion,
		AttemptID:   hex.EncodeToString(attempt[:]),
		RecordCount: s.Records, MinTime: s.MinTime, MaxTime: s.MaxTime,
	}
	// An invalid trace context is dropped: it comes from transport metadata, and tracing must
	// not decide whether a batch is accepted.
	if ValidTraceparent(s.Traceparent) {
		m.Traceparent = s.Traceparent
	}
	return m, nil
}

// Submission is what NewManifest made m from, with the frame and the spool id, which m does
// not have: a batch that waited in a spool is submitted again by it.
func (m Manifest) Submission(frame []byte, spoolID string) Submission {
	return Submission{
		Frame: frame, Identity: m.Identity, SHA256: m.FrameSHA256, Records: m.RecordCount,
		MinTime: m.MinTime, MaxTime: m.MaxTime, WireVersion: m.WireVersion, FrameVersion: m.FrameVersion,
		SpoolID: spoolID, Traceparent: m.Traceparent,
	}
}

// AcceptedTime is AcceptedAt in UTC.
func (m Manifest) AcceptedTime() time.Time { return time.Unix(0, m.AcceptedAt).UTC() }

// Claim is what decides which of two manifests counts that cover the same sequence numbers.
func (m Manifest) Claim() accepted.Claim {
	return accepted.Claim{Identity: m.Identity, AcceptedAt: m.AcceptedAt}
}

// Batch is the reference to this batch in derived records, plans and queries.
func (m Manifest) Batch() accepted.Batch {
	return accepted.Batch{
		Identity: m.Identity, FrameSHA256: m.FrameSHA256, FrameBytes: m.FrameBytes, RawBlobKey: m.FrameKey(),
		AcceptedAt: m.AcceptedAt, MinTime: m.MinTime, MaxTime: m.MaxTime, HomeRegion: m.HomeRegion, ClaimEpoch: m.ClaimEpoch,
	}
}

// Marshal writes the canonical JSON: equal manifests are equal bytes. Of a manifest that carries its frame it is
// the record alone; MarshalWith writes the object.
func (m Manifest) Marshal() []byte {
	var e record.Writer
	kind := ManifestKind
	if m.Inline {
		kind = InlineManifestKind
	}
	e.Begin(kind, 1024)
	e.Text("authority_id", m.AuthorityID)
	e.Batch(m.Identity)
	e.Digest("frame_sha256", m.FrameSHA256)
	e.Uint("frame_bytes", m.FrameBytes)
	if !m.Inline {
		e.Text("raw_blob_key", m.RawBlobKey)
	}
	e.Int("accepted_at_unix_ns", m.AcceptedAt)
	e.Text("collector_id", m.CollectorID)
	e.Uint("wire_version", uint64(m.WireVersion))
	e.Uint("frame_version", uint64(m.FrameVersion))
	e.Text("attempt_id", m.AttemptID)
	e.Uint("record_count", m.RecordCount)
	e.Int("min_time_unix_ns", m.MinTime)
	e.Int("max_time_unix_ns", m.MaxTime)
	e.OptionalText("traceparent", m.Traceparent)
	e.OptionalText("home_region", m.HomeRegion)
	e.OptionalUint("claim_epoch", m.ClaimEpoch)
	e.OptionalUint("claim_fence", m.ClaimFence)
	return e.End()
}

// ParseManifest reads the object of a manifest; a frame that it carries must have the length and the hash that the
// record says. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseManifest(b []byte) (Manifest, error) {
	kind, err := record.OneOf(b, InlineManifestKind, ManifestKind)
	if err != nil {
		return Manifest{}, err
	}
	var m Manifest
	var frame []byte
	if m.Inline = kind.Schema == InlineManifestKind.Schema; m.Inline {
		b, frame, _ = cutFrame(b)
	}
	d := record.NewReader(kind, b)
	m.AuthorityID = d.NonEmpty("authority_id", MaxNameBytes)
	m.Identity = d.Batch()
	m.FrameSHA256 = d.Digest("frame_sha256")
	m.FrameBytes = d.Uint("frame_bytes")
	if !m.Inline {
		m.RawBlobKey = d.Text("raw_blob_key", maxKeyBytes)
		checkBlobKey(d, "raw_blob_key", m.RawBlobKey, m.FrameSHA256)
	}
	m.AcceptedAt = d.UnixNano("accepted_at_unix_ns")
	m.CollectorID = d.NonEmpty("collector_id", MaxNameBytes)
	m.WireVersion = d.Uint32("wire_version")
	m.FrameVersion = d.Uint32("frame_version")
	m.AttemptID = d.Text("attempt_id", attemptIDDigits)
	m.RecordCount = d.Uint("record_count")
	m.MinTime = d.Int("min_time_unix_ns")
	m.MaxTime = d.Int("max_time_unix_ns")
	// Writers leave out an invalid value, so one in a record is damage and no oddity of a sender.
	if m.Traceparent = d.OptionalText("traceparent", traceparentBytes); m.Traceparent != "" && !ValidTraceparent(m.Traceparent) {
		d.Fail("traceparent is not W3C trace context")
	}
	m.HomeRegion = d.OptionalText("home_region", MaxNameBytes)
	m.ClaimEpoch = d.OptionalUint("claim_epoch")
	m.ClaimFence = d.OptionalUint("claim_fence")
	switch {
	// These checks compare fields with each other, so they need all of them to have parsed.
	case d.Err() != nil:
	case !validAttemptID(m.AttemptID):
		d.Fail("attempt_id is not %d hex digits", attemptIDDigits)
	case m.FrameBytes == 0:
		d.Fail("frame_bytes is 0")
	case m.RecordCount != m.Identity.Count():
		d.Fail("record_count is %d, the identity has %d", m.RecordCount, m.Identity.Count())
	case m.MaxTime < m.MinTime:
		d.Fail("max_time_unix_ns is before min_time_unix_ns")
	case m.ClaimFence != 0 && m.ClaimEpoch == 0:
		d.Fail("claim_fence is %d without a claim_epoch", m.ClaimFence)
	}
	if m.Inline {
		checkFrame(d, frame, m.FrameBytes, m.FrameSHA256)
	}
	if err := d.End(); err != nil {
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
