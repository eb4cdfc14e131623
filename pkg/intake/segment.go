package intake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/pkg/shard"
)

// SegmentSchema names a segment's JSON schema.
const SegmentSchema = "lightmetrics.intake_segment.v1"

// Bounds of a segment.
const (
	MaxEntries      = 1000
	MaxSegmentBytes = 4 << 20
	maxKeyBytes     = 1024
)

// ErrSegment is wrapped by every error of ParseSegment.
var ErrSegment = errors.New("invalid intake segment")

// Segment is some batches of one shard.
type Segment struct {
	Schema string `json:"schema"`
	// Shard of Shards.
	Shard   shard.ID `json:"shard"`
	Shards  uint32   `json:"shards"`
	Entries []Entry  `json:"entries"`
}

// Marshal writes the segment's JSON: equal segments are equal bytes.
func (s Segment) Marshal() ([]byte, error) {
	s.Schema = SegmentSchema
	if err := s.validate(); err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

// ParseSegment reads what Marshal writes, and nothing else.
func ParseSegment(b []byte) (Segment, error) {
	var s Segment
	if len(b) > MaxSegmentBytes {
		return s, fmt.Errorf("%w: %d bytes, at most %d", ErrSegment, len(b), MaxSegmentBytes)
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return Segment{}, fmt.Errorf("%w: %w", ErrSegment, err)
	}
	if err := s.validate(); err != nil {
		return Segment{}, err
	}
	if again, err := json.Marshal(s); err != nil || !bytes.Equal(again, b) {
		return Segment{}, fmt.Errorf("%w: not in its canonical form", ErrSegment)
	}
	return s, nil
}

func (s Segment) validate() error {
	switch {
	case s.Schema != SegmentSchema:
		return fmt.Errorf("%w: schema is %q", ErrSegment, s.Schema)
	case len(s.Entries) == 0 || len(s.Entries) > MaxEntries:
		return fmt.Errorf("%w: %d entries, 1 to %d", ErrSegment, len(s.Entries), MaxEntries)
	}
	if err := shard.CheckCount(s.Shards); err != nil {
		return fmt.Errorf("%w: %w", ErrSegment, err)
	}
	for _, e := range s.Entries {
		if err := e.Validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrSegment, err)
		}
		if got := shard.Of(e.AgentID, s.Shards); got != s.Shard {
			return fmt.Errorf("%w: agent %q is of shard %s, not %s", ErrSegment, e.AgentID, got, s.Shard)
		}
	}
	return nil
}
