package accept

import (
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// CondemnedKind is the kind of the condemned marker.
var CondemnedKind = record.Kind{Schema: "lightmetrics.condemned_blob.v1", Title: "condemned marker", MaxBytes: MaxRecordBytes}

// CondemnedMarker says that a generation is, or may be, deleted. It is permanent.
// Its presence alone decides: the protocol never reads the content, so a marker
// that does not parse condemns as well. The content is written for people.
type CondemnedMarker struct {
	FrameSHA256 identity.Digest `json:"frame_sha256"`
	Generation  uint32          `json:"generation"`
	// CondemnedAt by the garbage collector's clock, Unix nanoseconds, not negative.
	CondemnedAt int64 `json:"condemned_at_unix_ns"`
	// PlanID of the garbage collection that condemned it.
	PlanID string `json:"plan_id"`
}

// Key of the marker.
func (c CondemnedMarker) Key() string { return layout.Condemned(c.FrameSHA256, c.Generation) }

// Marshal writes the canonical JSON.
func (c CondemnedMarker) Marshal() []byte { return CondemnedKind.Marshal(c) }
