// Package server is the RefsService over a metadata store.
package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/pkg/publish"
	"lightmetrics.dev/lightmetrics/pkg/publish/wire"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// Server serves RefsService.
type Server struct {
	coordinatorv1.UnimplementedRefsServiceServer
	refs publish.Refs
}

// New makes a server.
func New(refs publish.Refs) *Server { return &Server{refs: refs} }

// Register adds it to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { coordinatorv1.RegisterRefsServiceServer(r, s) }

// retryAfter goes with what a later try can mend.
const retryAfter = time.Second

var statusCodes = map[string]codes.Code{
	"REFS_NO_RECORD": codes.NotFound, "REFS_CHANGED": codes.Aborted, "REFS_LOST": codes.FailedPrecondition,
	"REFS_FULL": codes.ResourceExhausted, "REFS_UNKNOWN": codes.Unavailable, "REFS_INVALID": codes.InvalidArgument,
}

// answer is resp, or err as a status with its reason.
func answer[T any](resp *T, err error) (*T, error) {
	if err == nil {
		return resp, nil
	}
	reason := wire.Reason(err)
	f := rpc.Failure{Code: statusCodes[reason], Reason: reason, Message: err.Error()}
	if f.Code == codes.Unavailable {
		f.RetryAfter = retryAfter
	}
	return nil, f.Err()
}

// GetFounding reads the founding.
func (s *Server) GetFounding(ctx context.Context, _ *coordinatorv1.GetFoundingRequest) (*coordinatorv1.GetFoundingResponse, error) {
	f, err := s.refs.Founding(ctx)
	return answer(&coordinatorv1.GetFoundingResponse{Founding: wire.FromFounding(f)}, err)
}

// FoundRefs replaces the founding.
func (s *Server) FoundRefs(ctx context.Context, r *coordinatorv1.FoundRefsRequest) (*coordinatorv1.FoundRefsResponse, error) {
	var old *publish.Founding
	if r.GetOld() != nil {
		f := wire.ToFounding(r.GetOld())
		old = &f
	}
	return answer(&coordinatorv1.FoundRefsResponse{}, s.refs.Found(ctx, old, wire.ToFounding(r.GetNext())))
}

// AddRefs puts a transaction into the sets of objects.
func (s *Server) AddRefs(ctx context.Context, r *coordinatorv1.AddRefsRequest) (*coordinatorv1.AddRefsResponse, error) {
	err := s.refs.Add(ctx, r.GetFoundingId(), publish.Txn(r.GetTransaction()), r.GetKeys())
	var condemned *publish.CondemnedError
	if errors.As(err, &condemned) {
		return &coordinatorv1.AddRefsResponse{Condemned: condemned.Keys}, nil
	}
	return answer(&coordinatorv1.AddRefsResponse{}, err)
}

// GetRefRecord reads a record.
func (s *Server) GetRefRecord(ctx context.Context, r *coordinatorv1.GetRefRecordRequest) (*coordinatorv1.GetRefRecordResponse, error) {
	rec, err := s.refs.Get(ctx, r.GetKey())
	return answer(&coordinatorv1.GetRefRecordResponse{Record: wire.FromRecord(rec)}, err)
}

// SwapRefRecord writes a record.
func (s *Server) SwapRefRecord(ctx context.Context, r *coordinatorv1.SwapRefRecordRequest) (*coordinatorv1.SwapRefRecordResponse, error) {
	err := s.refs.Swap(ctx, r.GetFoundingId(), wire.ToRecord(r.GetOld()), wire.ToRecord(r.GetNext()))
	return answer(&coordinatorv1.SwapRefRecordResponse{}, err)
}

// DeleteRefRecord drops a record.
func (s *Server) DeleteRefRecord(ctx context.Context, r *coordinatorv1.DeleteRefRecordRequest) (*coordinatorv1.DeleteRefRecordResponse, error) {
	return answer(&coordinatorv1.DeleteRefRecordResponse{}, s.refs.Delete(ctx, r.GetFoundingId(), wire.ToRecord(r.GetOld())))
}

// ListRefRecords reads a page.
func (s *Server) ListRefRecords(ctx context.Context, r *coordinatorv1.ListRefRecordsRequest) (*coordinatorv1.ListRefRecordsResponse, error) {
	size := int(r.GetPageSize())
	if size == 0 {
		size = wire.MaxPage
	}
	if size < 0 || size > wire.MaxPage {
		return answer[coordinatorv1.ListRefRecordsResponse](nil, publish.ErrRefsInvalid)
	}
	records, next, err := s.refs.List(ctx, r.GetPageToken(), size)
	resp := &coordinatorv1.ListRefRecordsResponse{NextPageToken: next}
	for _, rec := range records {
		resp.Records = append(resp.Records, wire.FromRecord(rec))
	}
	return answer(resp, err)
}
