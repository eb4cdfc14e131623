package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/agent/send/wire"
	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/harness/history"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// answerTimeout is how long a sender waits for one answer before it tries elsewhere.
const answerTimeout = 5 * time.Second

// tryAgain is how long a sender waits after a failure or RETRY.
const tryAgain = 20 * time.Millisecond

// Sender sends one boot's frames to one collector after the other over streams. Not
// safe for concurrent use.
type Sender struct {
	Boot  identity.Boot
	Spool string
	// Dial connects; nil is from this process's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Calls, where it is not nil, gets each submission, under the name Client.
	Calls  *history.Log
	Client int
	// Register names the register of an identity in the history, where several identities share one; nil is its own.
	Register func(identity.Batch) identity.Batch

	addrs  []string
	next   int
	conn   *grpc.ClientConn
	stream *wire.Stream
	cancel context.CancelFunc
}

// NewSender makes a sender that begins with the first address.
func NewSender(boot identity.Boot, addrs ...string) *Sender {
	return &Sender{Boot: boot, Spool: "spool-of-" + boot.Agent, addrs: addrs}
}

// Close ends the stream; the next Send opens another.
func (s *Sender) Close() {
	if s.cancel != nil {
		s.cancel()
		s.conn.Close()
	}
	s.conn, s.stream, s.cancel = nil, nil, nil
}

// Open dials the next collector and says hello.
func (s *Sender) Open(ctx context.Context) error {
	addr := s.addrs[s.next%len(s.addrs)]
	s.next++
	var opts []grpc.DialOption
	if s.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return s.Dial(ctx, "tcp", addr) }))
	}
	conn, err := rpc.Dial(addr, rpc.ClientConfig{}, opts...)
	if err != nil {
		return err
	}
	sctx, cancel := context.WithCancel(ctx)
	s.conn, s.cancel = conn, cancel
	// The stream outlives this call with sctx, so a deadline on sctx would end it later; the timer bounds
	// the hello alone.
	timer := time.AfterFunc(answerTimeout, cancel)
	defer timer.Stop()
	s.stream, _, err = wire.OpenStream(sctx, conn, wire.Hello{Boot: s.Boot, Spool: s.Spool})
	return err
}

// Send sends the frame until it has an outcome: accepted, duplicate, conflict or rejected.
func (s *Sender) Send(ctx context.Context, f []byte) (*ingestv1.BatchResult, error) {
	for {
		r, err := s.Try(ctx, f)
		if err == nil && r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY {
			return r, nil
		}
		if err != nil {
			s.Close()
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(tryAgain):
		}
	}
}

// Try sends the frame once. After an error its outcome is unknown.
func (s *Sender) Try(ctx context.Context, f []byte) (*ingestv1.BatchResult, error) {
	if s.stream == nil {
		if err := s.Open(ctx); err != nil {
			return nil, err
		}
	}
	h, err := frame.ParseHeader(f)
	if err != nil {
		return nil, err
	}
	d, register := identity.Sum(f), h.Identity
	if s.Register != nil {
		register = s.Register(register)
	}
	call, reply := s.Calls.Call(s.Client, register, d), history.Reply{}
	defer func() { call.End(reply) }()
	if err := s.stream.Send(f); err != nil {
		return nil, err
	}
	timer := time.AfterFunc(answerTimeout, s.cancel)
	defer timer.Stop()
	r, err := s.stream.Receive()
	if err != nil {
		return nil, err
	}
	// An answer to another frame would make an outcome out of nothing, so it counts as none.
	if string(r.GetFrameSha256()) != string(d[:]) {
		return nil, fmt.Errorf("answer to another frame: %v", r)
	}
	reply, err = replyOf(r)
	return r, err
}

// replyOf is what a result says of the identity's register.
func replyOf(r *ingestv1.BatchResult) (history.Reply, error) {
	holder := r.GetAcceptance().GetFrameSha256()
	if r.GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT {
		holder = r.GetConflict().GetAcceptedSha256()
	}
	outcome := outcomes[r.GetStatus().String()]
	if outcome == 0 {
		return history.Reply{}, nil
	}
	if len(holder) != len(identity.Digest{}) {
		return history.Reply{}, fmt.Errorf("%s names the holder %x", r.GetStatus(), holder)
	}
	return history.Reply{Outcome: outcome, Holder: identity.Digest(holder)}, nil
}

// outcomes that end a submission.
var outcomes = map[string]accept.Outcome{Accepted: accept.Accepted, Duplicate: accept.Duplicate, Conflict: accept.Conflict}
