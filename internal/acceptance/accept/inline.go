package accept

import (
	"bytes"
	"context"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// A record that carries its frame is an object of two parts: the canonical JSON as every record has it, a
// line feed, and the exact bytes of the frame. Canonical JSON has no bare line feed, so the first one ends it, and
// a reader that needs the record alone has it with the first MaxRecordBytes of the object.

// InlineManifestKind is the kind of an identity manifest that carries its frame.
var InlineManifestKind = record.Kind{Schema: "lightmetrics.accepted_batch.v2", Title: "identity manifest", MaxBytes: MaxRecordBytes}

// InlineConflictKind is the kind of a quarantine record that carries the frame that lost, or that is about a
// batch whose manifest carries its frame.
var InlineConflictKind = record.Kind{Schema: "lightmetrics.identity_conflict.v2", Title: "quarantine record", MaxBytes: MaxRecordBytes}

// Bounds of a record that carries a frame.
const (
	// MaxInlineFrame is the longest frame in bytes that a record carries.
	MaxInlineFrame = 1 << 20
	// MaxObjectBytes bounds an identity manifest, or a quarantine record, with its frame.
	MaxObjectBytes = MaxRecordBytes + 1 + MaxInlineFrame
)

// withFrame puts a frame behind a record.
func withFrame(head, frame []byte) []byte {
	b := make([]byte, 0, len(head)+1+len(frame))
	return append(append(append(b, head...), '\n'), frame...)
}

// cutFrame divides what withFrame wrote.
func cutFrame(b []byte) (head, frame []byte, ok bool) { return bytes.Cut(b, []byte{'\n'}) }

// RecordOf is the record without the frame that it may carry.
func RecordOf(b []byte) []byte {
	head, _, _ := cutFrame(b)
	return head
}

// checkFrame fails the reader unless frame is of the length and the hash that the record says.
func checkFrame(d *record.Reader, frame []byte, size uint64, sum identity.Digest) {
	switch {
	case d.Err() != nil:
	case len(frame) == 0 || len(frame) > MaxInlineFrame || uint64(len(frame)) != size:
		d.Fail("it carries %d bytes of a frame, and says %d", len(frame), size)
	case identity.Sum(frame) != sum:
		d.Fail("the frame that it carries does not hash to %s", sum)
	}
}

// MarshalWith writes the object of a manifest: with the frame, where it carries it.
func (m Manifest) MarshalWith(frame []byte) []byte {
	if !m.Inline {
		return m.Marshal()
	}
	return withFrame(m.Marshal(), frame)
}

// FrameKey is the key of the object that a reader takes the frame from first: a generation of its blob, or the manifest.
func (m Manifest) FrameKey() string {
	if m.Inline {
		return layout.Accepted(m.Identity)
	}
	return m.RawBlobKey
}

// MarshalWith writes the object of a quarantine record: with the frame that lost, where it carries it.
func (c ConflictRecord) MarshalWith(frame []byte) []byte {
	if !c.Inline() {
		return c.Marshal()
	}
	return withFrame(c.Marshal(), frame)
}

// Inline reports whether the record carries the frame that lost.
func (c ConflictRecord) Inline() bool { return c.SubmittedBlobKey == "" }

// FrameKey is the key of the object that a reader takes the frame that lost from first.
func (c ConflictRecord) FrameKey() string {
	if c.Inline() {
		return layout.Quarantine(c.Identity, c.SubmittedSHA256)
	}
	return c.SubmittedBlobKey
}

// ReadManifest reads the manifest of an identity, whether or not it carries its frame. Errors are those of record.Read.
func ReadManifest(ctx context.Context, g objstore.Getter, id identity.Batch) (Manifest, error) {
	object := InlineManifestKind
	object.MaxBytes = MaxObjectBytes
	m, _, err := record.Read(ctx, g, layout.Accepted(id), object, ParseManifest)
	return m, err
}

// InlineFrame gives the frame of a parsed record's object; nil if it carries none.
func InlineFrame(b []byte) []byte {
	_, frame, _ := cutFrame(b)
	return slices.Clip(frame)
}

// inlineKey reports whether a frame's key is that of a record that carries it.
func inlineKey(key string) bool {
	if _, err := layout.ParseAccepted(key); err == nil {
		return true
	}
	_, _, err := layout.ParseQuarantine(key)
	return err == nil
}

// HasInline reports whether the record under key carries the frame, and all of it is whole. An error means that the store
// did not answer.
func HasInline(ctx context.Context, r objstore.Getter, key string, d identity.Digest) (bool, error) {
	raw, _, err := readInline(ctx, r, key, d)
	return raw != nil, err
}

// readInline reads the frame that the record under key carries; nil bytes and a cause where it does not.
func readInline(ctx context.Context, r objstore.Getter, key string, d identity.Digest) (raw []byte, cause, err error) {
	b, _, err := r.Get(ctx, key, objstore.GetOptions{Limit: MaxObjectBytes})
	if isMissing(err) {
		return nil, err, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var got identity.Digest
	inline := false
	if _, perr := layout.ParseAccepted(key); perr == nil {
		var m Manifest
		if m, cause = ParseManifest(b); cause == nil {
			got, inline = m.FrameSHA256, m.Inline
		}
	} else {
		var c ConflictRecord
		if c, cause = ParseConflictRecord(b); cause == nil {
			got, inline = c.SubmittedSHA256, c.Inline()
		}
	}
	switch {
	case cause != nil:
		return nil, cause, nil
	case !inline || got != d:
		return nil, InlineManifestKind.Corrupt(key, "it does not carry the frame %s", d), nil
	}
	return InlineFrame(b), nil, nil
}
