// Package coordinator is both ends of the coordinator's API. Workers use an Owner, which keeps the shards that
// they are granted; PendingWork, a queue and a table of jobs that outlive the worker; and Refs, the reference sets
// of published objects. The coordinator serves the latter two with PendingServer and RefsServer over its own back
// ends. Both ends share the encoding of messages and one table of refusals, so that a client sees the same
// sentinel errors as a caller of the back end.
package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// DefaultTimeout bounds one call.
const DefaultTimeout = 10 * time.Second

// maxAnswer is larger than the largest page: maxRefPage records of publish.MaxTxns transactions each.
const maxAnswer = 64 << 20

// Dial connects to whichever coordinator of c.Addresses answers. The caller closes the connection.
func Dial(c Config) (*grpc.ClientConn, error) {
	r := manual.NewBuilderWithScheme("coordinators")
	var st resolver.State
	for _, a := range c.Addresses {
		// Each address has its own server name, or the certificate of only one of them would be accepted.
		st.Addresses = append(st.Addresses, resolver.Address{Addr: a, ServerName: host(a)})
	}
	r.InitialState(st)
	conn, err := rpc.Dial("coordinators:///any", c.Client, grpc.WithResolvers(r))
	if err != nil {
		return nil, fmt.Errorf("coordinator: %w", err)
	}
	return conn, nil
}

// host is the name that the coordinator's certificate must have.
func host(address string) string {
	h, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return h
}

// service says how the calls of one client are bounded, and how their failures are named.
type service struct {
	timeout time.Duration
	// invalid is the sentinel of a request that can never succeed, unavailable of one that certainly had no
	// effect.
	invalid, unavailable error
	// denied is that of a caller who is refused; nil is unavailable.
	denied error
	// wrap adds the operation and its key to an error.
	wrap func(op, key string, err error) error
}

func newService(timeout time.Duration, invalid, unavailable error, wrap func(op, key string, err error) error) service {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return service{timeout: timeout, invalid: invalid, unavailable: unavailable, wrap: wrap}
}

// call makes one call. unanswered is the sentinel of a call without an answer.
func call[Q, A any](ctx context.Context, s service, op, key string, unanswered error,
	fn func(context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (*A, error) {
	if err := ctx.Err(); err != nil { // checked first, as then it is certain that nothing was sent
		return nil, s.wrap(op, key, fmt.Errorf("%w: %w", s.unavailable, err))
	}
	bounded, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	resp, err := fn(bounded, req, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return nil, s.wrap(op, key, s.cause(err, unanswered))
	}
	return resp, nil
}

// cause wraps a failed call's error with the sentinel that it stands for.
func (s service) cause(err, unanswered error) error {
	// The reason before the code: several decisions share one code.
	if sentinel := sentinelOf(rpc.Reason(err)); sentinel != nil {
		return fmt.Errorf("%w: %s", sentinel, status.Convert(err).Message())
	}
	switch status.Code(err) {
	case codes.InvalidArgument:
		return fmt.Errorf("%w: %w", s.invalid, err)
	case codes.Unauthenticated, codes.PermissionDenied:
		return fmt.Errorf("%w: %w", cmp.Or(s.denied, s.unavailable), err)
	case codes.Unimplemented: // refused before it had any effect
		return fmt.Errorf("%w: %w", s.unavailable, err)
	case codes.Canceled:
		err = errors.Join(context.Canceled, err)
	case codes.DeadlineExceeded:
		err = errors.Join(context.DeadlineExceeded, err)
	}
	return fmt.Errorf("%w: %w", unanswered, err)
}
