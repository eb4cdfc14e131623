package ingest

import (
	"context"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// admit reserves room for a frame of n bytes before anything is decoded. If there is none
// after a short wait, the frame is shed: the sender gets RETRY.
func (s *Service) admit(ctx context.Context, n int) error {
	w := s.weight(n)
	if !s.room.TryAcquire(w) {
		wait, cancel := context.WithTimeout(ctx, s.limits().ShedAfter)
		defer cancel()
		if err := s.room.Acquire(wait, w); err != nil {
			s.metrics.sheds.WithLabelValues("in_flight_bytes").Inc()
			return failed(codes.ResourceExhausted, rpc.ReasonOverloaded, "%d bytes of frames are in flight", s.inFlight.Load()).after(s.cfg.Limits.RetryAfter)
		}
	}
	s.inFlight.Add(w)
	return nil
}

// admitBody reserves room for a frame of n bytes that is not received yet. The caller calls
// arrived when it was received, or was aborted. Bodies that arrive slowly, or never, may hold
// half of the room, so that frames which were received need not wait for them.
func (s *Service) admitBody(ctx context.Context, n int) (arrived func(), err error) {
	w := min(int64(n), s.bodiesRoom)
	wait, cancel := context.WithTimeout(ctx, s.limits().ShedAfter)
	defer cancel()
	if err := s.bodies.Acquire(wait, w); err != nil {
		s.metrics.sheds.WithLabelValues("bodies").Inc()
		return nil, failed(codes.ResourceExhausted, rpc.ReasonOverloaded, "too many bodies are being received").after(s.cfg.Limits.RetryAfter)
	}
	if err := s.admit(ctx, n); err != nil {
		s.bodies.Release(w)
		return nil, err
	}
	return func() { s.bodies.Release(w) }, nil
}

// release returns the room of admit.
func (s *Service) release(n int) {
	w := s.weight(n)
	s.inFlight.Add(-w)
	s.room.Release(w)
}

// weight is the room of a frame. A frame over the limit is refused soon; with its full size it would wait for ever.
func (s *Service) weight(n int) int64 { return min(int64(n), int64(s.cfg.Limits.InFlightBytes)) }

// recycle returns a frame's buffer to the pool once the frame is decided, unless it is kept. After an error a
// request of the store's client may still be sending its bytes: then it is left to the
// garbage collector.
func (s *Service) recycle(b []byte, v decision) {
	if v.err == nil && !v.kept {
		s.buffers.put(b)
	}
}

// enter counts a call that begins; false while the service stops.
func (s *Service) enter() bool {
	s.callsMu.Lock()
	// The lock makes the check and the Add one step: without it a call could be added after Run has
	// begun to wait for the last one.
	defer s.callsMu.Unlock()
	select {
	case <-s.drain:
		return false
	default:
		s.calls.Add(1)
		return true
	}
}

func (s *Service) leave() { s.calls.Done() }
