// Package remote is pending work that the coordinator keeps: a queue and a table over WorkService.
package remote

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/work"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// DefaultTimeout bounds one call.
const DefaultTimeout = 10 * time.Second

// maxAnswer is above the greatest page: work.MaxPage rows with body and state.
const maxAnswer = 16 << 20

// Store is both; safe for concurrent use.
type Store struct {
	client  coordinatorv1.WorkServiceClient
	timeout time.Duration
}

var (
	_ work.Queue = (*Store)(nil)
	_ work.Table = (*Store)(nil)
)

// New makes a store over conn; timeout 0 is DefaultTimeout.
func New(conn grpc.ClientConnInterface, timeout time.Duration) *Store {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return &Store{client: coordinatorv1.NewWorkServiceClient(conn), timeout: timeout}
}

// ask makes a call that only reads.
func ask[Q, A any](ctx context.Context, s *Store, op, key string, fn func(context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (*A, error) {
	return call(ctx, s, op, key, work.ErrUnavailable, fn, req)
}

// change makes a call that changes something: without an answer, perhaps.
func change[Q, A any](ctx context.Context, s *Store, op, key string, fn func(context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (*A, error) {
	return call(ctx, s, op, key, work.ErrUnknown, fn, req)
}

func call[Q, A any](ctx context.Context, s *Store, op, key string, lost error, fn func(context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (*A, error) {
	if err := ctx.Err(); err != nil {
		return nil, &work.Error{Op: op, Key: key, Err: fmt.Errorf("%w: %w", work.ErrUnavailable, err)}
	}
	bounded, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	resp, err := fn(bounded, req, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err != nil {
		return nil, &work.Error{Op: op, Key: key, Err: cause(err, lost)}
	}
	return resp, nil
}

// cause is the sentinel that err stands for.
func cause(err, lost error) error {
	if s := work.FromReason(rpc.Reason(err)); s != nil {
		return fmt.Errorf("%w: %s", s, status.Convert(err).Message())
	}
	switch status.Code(err) {
	case codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		// Refused before it was looked at; Unauthenticated and the like are mended by people.
		if status.Code(err) == codes.InvalidArgument {
			return fmt.Errorf("%w: %w", work.ErrInvalid, err)
		}
		return fmt.Errorf("%w: %w", work.ErrUnavailable, err)
	case codes.Canceled:
		return fmt.Errorf("%w: %w", lost, errors.Join(context.Canceled, err))
	case codes.DeadlineExceeded:
		return fmt.Errorf("%w: %w", lost, errors.Join(context.DeadlineExceeded, err))
	}
	return fmt.Errorf("%w: %w", lost, err)
}
