package ingest

import (
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
)

// ReasonBadFramesRequest is the ErrorInfo reason of a ReadFrames that names too many frames, or no hashes.
const ReasonBadFramesRequest = "BAD_FRAMES_REQUEST"

// Bounds of ReadFrames.
const (
	// maxFramesAsked bounds the frames of a call, and maxFramesMessage the bytes of frames in a message.
	maxFramesAsked   = 256
	maxFramesMessage = 256 << 10
	// maxFramesCalls bounds the calls at once. A call holds the frames of one message, and no more.
	maxFramesCalls = 32
	// maxFramesTime is the longest deadline of a call: a caller that does not read keeps one of the calls until then.
	maxFramesTime = time.Minute
)

// ReadFrames sends frames that are kept in memory.
func (g journalServer) ReadFrames(req *journalv1.ReadFramesRequest, stream grpc.ServerStreamingServer[journalv1.ReadFramesResponse]) error {
	s := g.s
	asked := req.GetFrameSha256()
	if err := checkFramesRequest(asked); err != nil {
		return failed(codes.InvalidArgument, ReasonBadFramesRequest, "%v", err).Err()
	}
	if at, ok := stream.Context().Deadline(); !ok || time.Until(at) > maxFramesTime {
		return failed(codes.InvalidArgument, ReasonBadFramesRequest, "the call has no deadline within %v", maxFramesTime).Err()
	}
	if n := s.framesCalls.Add(1); n > maxFramesCalls {
		s.framesCalls.Add(-1)
		s.metrics.sheds.WithLabelValues("frames").Inc()
		return failed(codes.ResourceExhausted, rpc.ReasonOverloaded, "%d calls read frames", n-1).after(s.cfg.Limits.RetryAfter).Err()
	}
	defer s.framesCalls.Add(-1)
	w := framesWriter{recent: s.recent, send: func(m *journalv1.ReadFramesResponse) error {
		select {
		case <-s.drain:
			return s.draining()
		default:
			return stream.Send(m)
		}
	}}
	defer w.giveBack()
	for i, sum := range asked {
		// Each is looked for when it is its turn, so that a slow caller holds no frames that were forgotten meanwhile.
		h := s.recent.lend(identity.Digest(sum))
		if h == nil {
			s.metrics.framesRead.WithLabelValues("missing").Inc()
			w.missing(uint32(i))
			continue
		}
		s.metrics.framesRead.WithLabelValues("sent").Inc()
		s.metrics.framesReadBytes.Add(float64(len(h.bytes)))
		if err := w.write(uint32(i), h); err != nil {
			return err
		}
	}
	return w.flush()
}

func checkFramesRequest(asked [][]byte) error {
	if len(asked) > maxFramesAsked {
		return fmt.Errorf("%d frames, at most %d", len(asked), maxFramesAsked)
	}
	for _, sum := range asked {
		if len(sum) != len(identity.Digest{}) {
			return fmt.Errorf("a SHA-256 of %d bytes", len(sum))
		}
	}
	return nil
}

// framesWriter gathers pieces of frames into messages.
type framesWriter struct {
	recent *recentFrames
	send   func(*journalv1.ReadFramesResponse) error
	pieces []*journalv1.FramePiece
	lent   []*recentFrame // that pieces are of
	bytes  int
}

// missing says that there is no i-th frame.
func (w *framesWriter) missing(i uint32) {
	w.pieces = append(w.pieces, &journalv1.FramePiece{Index: i, Missing: true})
}

// write adds the i-th frame, which was lent.
func (w *framesWriter) write(i uint32, h *recentFrame) error {
	w.lent = append(w.lent, h)
	for frame := h.bytes; len(frame) > 0; {
		if w.bytes == maxFramesMessage {
			if err := w.sendPieces(); err != nil {
				return err
			}
		}
		n := min(len(frame), maxFramesMessage-w.bytes)
		w.pieces = append(w.pieces, &journalv1.FramePiece{Index: i, Data: frame[:n]})
		frame, w.bytes = frame[n:], w.bytes+n
	}
	if w.bytes == maxFramesMessage {
		return w.flush()
	}
	return nil
}

// flush sends what was gathered; all frames are complete.
func (w *framesWriter) flush() error {
	defer w.giveBack()
	return w.sendPieces()
}

func (w *framesWriter) sendPieces() error {
	if len(w.pieces) == 0 {
		return nil
	}
	m := &journalv1.ReadFramesResponse{Pieces: w.pieces}
	w.pieces, w.bytes = nil, 0
	return w.send(m)
}

// giveBack gives back what was sent.
func (w *framesWriter) giveBack() {
	w.recent.giveBack(w.lent)
	w.lent = nil
}
