package accept

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
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

// CondemnedHourKind is the kind of the record of an hour's condemned generations.
var CondemnedHourKind = record.Kind{Schema: "lightmetrics.condemned_hour.v1", Title: "record of an hour's condemned generations", MaxBytes: MaxRecordBytes}

// CondemnedHour condemns, for retention, the generations below a number of all frames whose
// last sample lies in the hour. It is permanent, and the number only grows: it is replaced by
// If-Match alone. One record stands for the markers of all batches of the hour.
type CondemnedHour struct {
	AuthorityID string
	Hour        timegrid.Hour
	// Below is at least 1: generations 0 to Below-1 are, or may be, deleted.
	Below uint32
	// RaisedAt by the clock of the process that raised Below last, Unix nanoseconds, not negative.
	RaisedAt int64
	// By names that process.
	By string
}

type condemnedHourJSON struct {
	AuthorityID string `json:"authority_id"`
	Hour        string `json:"hour"`
	Below       uint32 `json:"below"`
	RaisedAt    int64  `json:"raised_at_unix_ns"`
	By          string `json:"by"`
}

// Marshal writes the canonical JSON.
func (c CondemnedHour) Marshal() []byte {
	return CondemnedHourKind.Marshal(condemnedHourJSON{c.AuthorityID, c.Hour.String(), c.Below, c.RaisedAt, c.By})
}

// ParseCondemnedHour reads the record; errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseCondemnedHour(b []byte) (CondemnedHour, error) {
	var j condemnedHourJSON
	if err := CondemnedHourKind.Unmarshal(b, &j); err != nil {
		return CondemnedHour{}, err
	}
	t, err := time.Parse("2006-01-02T15", j.Hour)
	if err != nil {
		return CondemnedHour{}, CondemnedHourKind.Wrap("", fmt.Errorf("hour: %w", err))
	}
	c := CondemnedHour{j.AuthorityID, timegrid.HourStarting(t), j.Below, j.RaisedAt, j.By}
	switch {
	case validName("authority id", c.AuthorityID) != nil, c.Below == 0, c.RaisedAt < 0:
		err = fmt.Errorf("authority %.128q, below %d, raised at %d", c.AuthorityID, c.Below, c.RaisedAt)
	case c.Hour.String() != j.Hour:
		err = errors.New("hour is not in its shortest form")
	}
	if err != nil {
		return CondemnedHour{}, CondemnedHourKind.Wrap("", err)
	}
	return c, nil
}

// CheckBelongs refuses a record that is stored under another's key.
func (c CondemnedHour) CheckBelongs(authority string, h timegrid.Hour) error {
	if c.AuthorityID != authority || c.Hour != h {
		return CondemnedHourKind.Corrupt(layout.CondemnedHour(h), "it is of %s and the authority %q", c.Hour, c.AuthorityID)
	}
	return nil
}

// RewrittenKind is the kind of the note of a rewritten frame.
var RewrittenKind = record.Kind{Schema: "lightmetrics.rewritten_frame.v1", Title: "note of a rewritten frame", MaxBytes: MaxRecordBytes}

// RewrittenNote tells retention that a duplicate wrote a frame again after the hour's earlier
// generations were condemned, so that it removes this one too. Its key says everything; the
// content is for people. Whoever removes the generation deletes the note.
type RewrittenNote struct {
	AuthorityID string          `json:"authority_id"`
	FrameSHA256 identity.Digest `json:"frame_sha256"`
	Generation  uint32          `json:"generation"`
	// RewrittenAt by the collector's clock, Unix nanoseconds, not negative.
	RewrittenAt int64  `json:"rewritten_at_unix_ns"`
	CollectorID string `json:"collector_id"`
}

// Marshal writes the canonical JSON.
func (n RewrittenNote) Marshal() []byte { return RewrittenKind.Marshal(n) }
