package coordinator

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// stream is one connection to a coordinator. Its goroutines end when cancel is called.
type stream struct {
	address string
	conn    *grpc.ClientConn
	cancel  context.CancelFunc
	in      chan *coordinatorv1.OwnResponse
	out     chan *coordinatorv1.OwnRequest
	ended   chan error // the reader's final error
	done    chan struct{}

	registered time.Time // when register was put into out
	answered   time.Time // when a message last arrived
	sent       map[uint64]time.Time
	sequence   uint64
}

// queued bounds the messages that wait to be sent: a release for every shard, and some more.
const queued = 8192

// open connects and starts the loops of a stream.
func open(ctx context.Context, address string, c rpc.ClientConfig) (*stream, error) {
	conn, err := rpc.Dial(address, c)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{address: address, conn: conn, cancel: cancel, in: make(chan *coordinatorv1.OwnResponse), out: make(chan *coordinatorv1.OwnRequest, queued),
		ended: make(chan error, 1), done: make(chan struct{}), sent: map[uint64]time.Time{}, answered: time.Now()}
	go s.run(ctx)
	return s, nil
}

// run reads; a second loop writes. Both end with the stream.
func (s *stream) run(ctx context.Context) {
	defer close(s.done)
	// Connecting takes as long as it takes; the owner's loop closes the stream when no answer comes in time.
	st, err := coordinatorv1.NewOwnershipServiceClient(s.conn).Own(ctx)
	if err != nil {
		s.ended <- err
		return
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		for {
			select {
			case m := <-s.out:
				if st.Send(m) != nil { // the reader gets the reason from Recv
					return
				}
			case <-st.Context().Done():
				return
			}
		}
	}()
	for {
		var m *coordinatorv1.OwnResponse
		if m, err = st.Recv(); err != nil {
			break
		}
		select {
		// The owner's loop may be busy or have left; ctx ends in the second case.
		case s.in <- m:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		}
		break
	}
	// The channel has room for one, so this never blocks, also when nobody reads it any more.
	s.ended <- err
	s.cancel()
	<-written
}

// send queues a message. If the queue is full the coordinator has not read for long, and the stream ends.
func (s *stream) send(m *coordinatorv1.OwnRequest) {
	select {
	case s.out <- m:
	default:
		s.cancel()
	}
}

func (s *stream) keepAlive() {
	s.sequence++
	// Noted before it is sent: the lease may count from any moment after this one.
	s.sent[s.sequence] = time.Now()
	delete(s.sent, s.sequence-16) // so old that its answer would not extend the lease
	s.send(&coordinatorv1.OwnRequest{Message: &coordinatorv1.OwnRequest_KeepAlive{KeepAlive: &coordinatorv1.KeepAlive{Sequence: s.sequence}}})
}

// close ends the stream and waits for its loops.
func (s *stream) close() {
	s.cancel()
	<-s.done
	_ = s.conn.Close() // nothing is being sent any more
}
