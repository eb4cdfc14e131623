package query

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// reasonSlowReader: the client did not read the answer.
const reasonSlowReader = "SLOW_READER"

// sender sends the messages of one stream and waits for each only for a limited time: a stream blocks as long as
// its client does not read, and a query keeps its slot and memory until everything is sent.
type sender[T any] struct {
	in    chan *T
	out   chan error
	timer *time.Timer
	wait  time.Duration
}

// newSender starts the goroutine that sends. Close it before the handler returns; a blocked send ends with the
// stream, which ends with the handler.
func newSender[T any](stream interface{ Send(*T) error }, wait time.Duration) *sender[T] {
	s := &sender[T]{
		in: make(chan *T), out: make(chan error, 1),
		timer: time.NewTimer(wait), wait: wait,
	}
	go func() {
		// Send blocks while the client does not read, so it must not run in the goroutine that watches the time.
		for m := range s.in {
			s.out <- stream.Send(m)
		}
	}()
	return s
}

// send returns when m is handed to the stream, the wait is over or ctx is done; after an error nothing more may be
// sent.
func (s *sender[T]) send(ctx context.Context, m *T) error {
	s.timer.Reset(s.wait)
	s.in <- m // does not block: the previous message was handed on
	select {
	case err := <-s.out:
		return err
	case <-s.timer.C:
		return rpc.Failure{Code: codes.DeadlineExceeded, Reason: reasonSlowReader,
			Message: "the answer was not read for write_timeout of " + s.wait.String()}.Err()
	case <-ctx.Done():
		return failure(ctx.Err())
	}
}

func (s *sender[T]) close() {
	s.timer.Stop()
	close(s.in)
}
