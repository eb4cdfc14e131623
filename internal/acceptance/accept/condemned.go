package accept

import (
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// CondemnedKind is the kind of the condemned marker.
var CondemnedKind = record.Kind{Schema: "lightmetrics.condemned_blob.v1", Title: "condemned marker", MaxBytes: MaxRecordBytes}

// CondemnedMarker says that a generation is, or may be, deleted. It is permanent.
// Its presence alone decides: the protocol never looks inside, so that a marker
// that does not parse condemns as well.
type CondemnedMarker struct {
	FrameSHA256 identity.Digest
	Generation  uint32
	// CondemnedAt by the garbage collector's clock, Unix nanoseconds, not negative.
	CondemnedAt int64
	// PlanID of the garbage collection that condemned it.
	PlanID string
}

// Key of the marker.
func (c CondemnedMarker) Key() string { return layout.Condemned(c.FrameSHA256, c.Generation) }

// Marshal writes the canonical JSON.
func (c CondemnedMarker) Marshal() []byte {
	var e record.Writer
	e.Begin(CondemnedKind, 256)
	e.Digest("frame_sha256", c.FrameSHA256)
	e.Uint("generation", uint64(c.Generation))
	e.Int("condemned_at_unix_ns", c.CondemnedAt)
	e.Text("plan_id", c.PlanID)
	return e.End()
}

// ParseCondemnedMarker reads the record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseCondemnedMarker(b []byte) (CondemnedMarker, error) {
	d := record.NewReader(CondemnedKind, b)
	var c CondemnedMarker
	c.FrameSHA256 = d.Digest("frame_sha256")
	c.Generation = d.Uint32("generation")
	c.CondemnedAt = d.UnixNano("condemned_at_unix_ns")
	c.PlanID = d.NonEmpty("plan_id", MaxNameBytes)
	if err := d.End(); err != nil {
		return CondemnedMarker{}, err
	}
	return c, nil
}
