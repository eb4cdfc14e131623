package ingest

import (
	"context"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// admit takes room for a frame of n bytes, or sheds it after a short wait, before
// anything is decoded.
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

// expect admits a frame of n bytes that is still to come; arrived is called when it
// is here, or is given up. Bodies that come slowly, or never, may hold half of the
// room: who has sent a frame need not wait for one who has not.
func (s *Service) expect(ctx context.Context, n int) (arrived func(), err error) {
	w := min(int64(n), s.bodiesRoom)
	wait, cancel := context.WithTimeout(ctx, s.limits().ShedAfter)
	defer cancel()
	if err := s.bodies.Acquire(wait, w); err != nil {
		s.metrics.sheds.WithLabelValues("bodies").Inc()
		return nil, failed(codes.ResourceExhausted, rpc.ReasonOverloaded, "too many bodies are on their way").after(s.cfg.Limits.RetryAfter)
	}
	if err := s.admit(ctx, n); err != nil {
		s.bodies.Release(w)
		return nil, err
	}
	return func() { s.bodies.Release(w) }, nil
}

// release gives back the room of admit.
func (s *Service) release(n int) {
	w := s.weight(n)
	s.inFlight.Add(-w)
	s.room.Release(w)
}

// weight of a frame; one that is over the limit is refused soon, and must not wait for ever.
func (s *Service) weight(n int) int64 { return min(int64(n), int64(s.cfg.Limits.InFlightBytes)) }

// recycle gives a frame's buffer back once its verdict is known. After an error a
// request of the store's client may still be sending it: then it is left to the
// garbage collector.
func (s *Service) recycle(b []byte, v verdict) {
	if v.err == nil {
		s.buffers.put(b)
	}
}

// enter counts a call in; false while the service stops.
func (s *Service) enter() bool {
	s.callsMu.Lock()
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
