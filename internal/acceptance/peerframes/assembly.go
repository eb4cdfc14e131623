package peerframes

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// Reason says why frames were not taken, for metrics.
type Reason string

// Reasons.
const (
	reasonTimeout     Reason = "timeout"     // not within the wait
	reasonUnavailable Reason = "unavailable" // no connection, or the collector stops or has too much to do
	reasonRefused     Reason = "refused"     // the collector answered with another error
	reasonProtocol    Reason = "protocol"    // pieces in no order, too many, too few
	reasonTooLong     Reason = "too_long"    // more bytes than the journal says
	reasonWrongBytes  Reason = "wrong_bytes" // another hash than the journal's
)

func reasons() []Reason {
	return []Reason{reasonTimeout, reasonUnavailable, reasonRefused, reasonProtocol, reasonTooLong, reasonWrongBytes}
}

// lies reports whether no collector that is in order does this.
func (r Reason) lies() bool {
	return r == reasonProtocol || r == reasonTooLong || r == reasonWrongBytes
}

type protocolError struct {
	reason Reason
	text   string
}

func (e *protocolError) Error() string { return e.text }

func reasonOf(err error) Reason {
	var p *protocolError
	switch {
	case errors.As(err, &p):
		return p.reason
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return reasonTimeout
	case status.Code(err) == codes.Unavailable:
		return reasonUnavailable
	}
	return reasonRefused
}

// assembly puts the pieces of an answer together, and compares each frame with the journal.
type assembly struct {
	batches        []accepted.Batch
	frames         [][]byte // of batches, those that are complete and right
	next           int      // the frame that comes next, or has begun
	frame          []byte   // of next, as far as it has come
	taken, missing int
	bytes          uint64 // taken
}

// end ends the answer, and is an error where there are frames of which it said nothing.
func (a *assembly) end() error {
	if a.next < len(a.batches) {
		return &protocolError{reasonProtocol, fmt.Sprintf("the answer ended before frame %d of %d", a.next, len(a.batches))}
	}
	return nil
}

// add adds a piece.
func (a *assembly) add(p *journalv1.FramePiece) error {
	if a.next == len(a.batches) || int64(p.GetIndex()) != int64(a.next) {
		return &protocolError{reasonProtocol, fmt.Sprintf("a piece of frame %d, where %d of %d is due", p.GetIndex(), a.next, len(a.batches))}
	}
	b := &a.batches[a.next]
	data := p.GetData()
	switch {
	case p.GetMissing() && len(a.frame) == 0 && len(data) == 0:
		a.next++
		a.missing++
		return nil
	case p.GetMissing() || len(data) == 0:
		return &protocolError{reasonProtocol, fmt.Sprintf("a piece of %d bytes of frame %d, missing: %v", len(data), a.next, p.GetMissing())}
	case uint64(len(a.frame))+uint64(len(data)) > b.FrameBytes:
		return &protocolError{reasonTooLong, fmt.Sprintf("more than the %d bytes of %s", b.FrameBytes, b.Identity)}
	}
	switch {
	case len(a.frame) > 0:
		a.frame = append(a.frame, data...)
	case uint64(len(data)) == b.FrameBytes:
		a.frame = data
	default:
		// Of its exact length: callers keep frames, and count their memory by it.
		a.frame = append(make([]byte, 0, min(b.FrameBytes, maxFrame)), data...)
	}
	if uint64(len(a.frame)) < b.FrameBytes {
		return nil
	}
	frame := a.frame
	a.frame = nil
	if sum := identity.Sum(frame); sum != b.FrameSHA256 {
		return &protocolError{reasonWrongBytes, fmt.Sprintf("the frame of %s hashes to %s", b.Identity, sum)}
	}
	a.frames[a.next] = frame
	a.next++
	a.taken++
	a.bytes += b.FrameBytes
	return nil
}
