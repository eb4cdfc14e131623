// Package server is the WorkService over a queue and a table.
package server

import (
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/pkg/rpc"
	"lightmetrics.dev/lightmetrics/pkg/work"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// Server serves WorkService. Deadlines of its back ends are theirs.
type Server struct {
	coordinatorv1.UnimplementedWorkServiceServer
	queue work.Queue
	table work.Table
}

// New makes a server.
func New(q work.Queue, t work.Table) *Server { return &Server{queue: q, table: t} }

// Register adds it to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { coordinatorv1.RegisterWorkServiceServer(r, s) }

// retryAfter goes with what a later try can mend.
const retryAfter = time.Second

var statusCodes = map[error]codes.Code{
	work.ErrExists: codes.AlreadyExists, work.ErrCompleted: codes.FailedPrecondition, work.ErrLive: codes.FailedPrecondition,
	work.ErrMoved: codes.Aborted, work.ErrFenced: codes.PermissionDenied, work.ErrNotFound: codes.NotFound, work.ErrGone: codes.Aborted,
	work.ErrFull: codes.ResourceExhausted, work.ErrInvalid: codes.InvalidArgument, work.ErrUnknown: codes.Unavailable, work.ErrUnavailable: codes.Unavailable,
}

// failure is err as a status with its reason; nil stays nil.
func failure(err error) error {
	if err == nil {
		return nil
	}
	reason := work.Reason(err)
	code, ok := statusCodes[work.FromReason(reason)]
	if !ok {
		return rpc.Status(err)
	}
	f := rpc.Failure{Code: code, Reason: reason, Message: err.Error()}
	var e *work.Error
	if errors.As(err, &e) {
		f.Metadata = map[string]string{"op": e.Op, "key": e.Key}
	}
	if code == codes.Unavailable || code == codes.ResourceExhausted {
		f.RetryAfter = retryAfter
	}
	return f.Err()
}

// page is the size of a page that was asked for; what is out of bounds stays so, to be refused.
func page(size int32) int {
	if size == 0 {
		return work.MaxPage
	}
	return int(size)
}

// answer is resp, or err as a status.
func answer[T any](resp *T, err error) (*T, error) {
	if err != nil {
		return nil, failure(err)
	}
	return resp, nil
}

// row answers with a row.
func row[T any](r work.Row, err error, fn func(work.Row) *T) (*T, error) {
	if err != nil {
		return nil, failure(err)
	}
	return fn(r), nil
}

var _ coordinatorv1.WorkServiceServer = (*Server)(nil)

// invalid is a request that says nothing to do.
func invalid(op, what string) error {
	return failure(&work.Error{Op: op, Key: what, Err: work.ErrInvalid})
}
