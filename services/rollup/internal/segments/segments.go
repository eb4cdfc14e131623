// Package segments reads the intake segments of one authority, for the owner of a shard and
// for its snapshots.
package segments

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

const (
	// PerPoll bounds the segments of one poll, so that other work of a shard has its turn.
	PerPoll = 200
	// PollTimeout bounds one poll.
	PollTimeout = time.Minute
)

// ErrNoRoom ends a poll: what is read would have to be remembered, and there is no room.
var ErrNoRoom = errors.New("no room")

// ForeignError is a segment of another number of shards, which spreads agents otherwise. It
// stays where it is, and holds up nothing.
type ForeignError struct {
	Key        string
	Have, Want uint32
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("segment %q is of %d shards, not %d", e.Key, e.Have, e.Want)
}

// Reader reads segments.
type Reader struct {
	Store  objstore.Reader
	Shards uint32
}

// Read reads a segment. *ForeignError, record.ErrCorrupt and objstore.ErrNotFound are final;
// whatever else a later try may mend wraps intake.ErrLater.
func (r Reader) Read(ctx context.Context, key string) (intake.Segment, error) {
	seg, err := intake.ReadSegment(ctx, r.Store, key)
	switch {
	case err == nil && seg.Shards != r.Shards:
		return seg, &ForeignError{Key: key, Have: seg.Shards, Want: r.Shards}
	case err == nil, errors.Is(err, record.ErrCorrupt), errors.Is(err, objstore.ErrNotFound), ctx.Err() != nil:
		return seg, err
	}
	// The store refused this one, or did not answer. Segments behind it need not wait.
	return seg, fmt.Errorf("%w: %w", intake.ErrLater, err)
}
