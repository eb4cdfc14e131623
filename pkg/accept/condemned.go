package accept

import (
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/layout"
)

// CondemnedSchema names the condemned marker's JSON schema.
const CondemnedSchema = "lightmetrics.condemned_blob.v1"

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
	e := encoder{b: make([]byte, 0, 256)}
	e.begin(CondemnedSchema)
	e.digest("frame_sha256", c.FrameSHA256)
	e.uint("generation", uint64(c.Generation))
	e.int("condemned_at_unix_ns", c.CondemnedAt)
	e.text("plan_id", c.PlanID)
	return e.end()
}

// ParseCondemnedMarker reads canonical JSON and nothing else; every error wraps ErrCorruptRecord.
func ParseCondemnedMarker(b []byte) (CondemnedMarker, error) {
	d := newDecoder("condemned marker", CondemnedSchema, b)
	var c CondemnedMarker
	c.FrameSHA256 = d.digest("frame_sha256")
	c.Generation = d.uint32("generation")
	c.CondemnedAt = d.unixNano("condemned_at_unix_ns")
	c.PlanID = d.nonEmpty("plan_id", MaxNameBytes)
	if err := d.end(); err != nil {
		return CondemnedMarker{}, err
	}
	return c, nil
}
