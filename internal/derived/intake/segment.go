package intake

import (
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
)

// SegmentKind is the kind of a segment.
var SegmentKind = record.Kind{Schema: "lightmetrics.intake_segment.v1", Title: "intake segment", MaxBytes: 4 << 20}

// MaxEntries bounds a segment.
const MaxEntries = 1000

// Segment lists accepted batches of one shard.
type Segment struct {
	// Shard of Shards.
	Shard   shard.ID         `json:"shard"`
	Shards  uint32           `json:"shards"`
	Entries []accepted.Batch `json:"entries"`
}

// Marshal writes the canonical JSON: equal segments are equal bytes. An invalid segment is an error.
func (s Segment) Marshal() ([]byte, error) {
	if err := s.validate(); err != nil {
		return nil, fmt.Errorf("intake segment: %w", err)
	}
	return SegmentKind.Marshal(s), nil
}

// ParseSegment reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseSegment(b []byte) (Segment, error) {
	var s Segment
	err := SegmentKind.Unmarshal(b, &s)
	if err == nil {
		err = s.validate()
	}
	if err != nil {
		return Segment{}, SegmentKind.Wrap("", err)
	}
	return s, nil
}

func (s Segment) validate() error {
	if len(s.Entries) == 0 || len(s.Entries) > MaxEntries {
		return fmt.Errorf("%d entries, 1 to %d", len(s.Entries), MaxEntries)
	}
	if err := shard.CheckCount(s.Shards); err != nil {
		return err
	}
	for i := range s.Entries {
		e := &s.Entries[i]
		if err := e.Validate(); err != nil {
			return err
		}
		// The worker of another shard would never see the batch, and this one must not publish it.
		if got := shard.Of(e.Agent, s.Shards); got != s.Shard {
			return fmt.Errorf("agent %q is of shard %s, not %s", e.Agent, got, s.Shard)
		}
	}
	return nil
}
