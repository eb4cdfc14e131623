package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// maxRefPage is the most records of a page.
const maxRefPage = 1000

// RefsServer serves RefsService over a metadata store.
type RefsServer struct {
	coordinatorv1.UnimplementedRefsServiceServer
	refs publish.Refs
}

// NewRefsServer makes a server.
func NewRefsServer(refs publish.Refs) *RefsServer { return &RefsServer{refs: refs} }

// Register adds it to a gRPC server.
func (s *RefsServer) Register(r grpc.ServiceRegistrar) { coordinatorv1.RegisterRefsServiceServer(r, s) }

// GetEpoch reads the epoch.
func (s *RefsServer) GetEpoch(ctx context.Context, _ *coordinatorv1.GetEpochRequest) (*coordinatorv1.GetEpochResponse, error) {
	f, err := s.refs.Epoch(ctx)
	return answerRefs(&coordinatorv1.GetEpochResponse{Epoch: encodeEpoch(f)}, err)
}

// InitEpoch replaces the epoch.
func (s *RefsServer) InitEpoch(ctx context.Context, r *coordinatorv1.InitEpochRequest) (*coordinatorv1.InitEpochResponse, error) {
	var old *publish.Epoch
	// Absent means that there was no epoch, which differs from an empty one.
	if r.GetOld() != nil {
		f := decodeEpoch(r.GetOld())
		old = &f
	}
	return answerRefs(&coordinatorv1.InitEpochResponse{}, s.refs.InitEpoch(ctx, old, decodeEpoch(r.GetNext())))
}

// AddRefs puts transactions into the sets of objects.
func (s *RefsServer) AddRefs(ctx context.Context, r *coordinatorv1.AddRefsRequest) (*coordinatorv1.AddRefsResponse, error) {
	var add []publish.Addition
	for _, a := range r.GetAdditions() {
		add = append(add, publish.Addition{Txn: publish.Txn(a.GetTransaction()), Keys: a.GetKeys()})
	}
	err := s.refs.Add(ctx, r.GetEpochId(), add...)
	var condemned *publish.CondemnedError
	if errors.As(err, &condemned) {
		// An answer and not an error, because the caller needs the whole list of keys.
		return &coordinatorv1.AddRefsResponse{Condemned: condemned.Keys}, nil
	}
	return answerRefs(&coordinatorv1.AddRefsResponse{}, err)
}

// GetRefRecords reads records.
func (s *RefsServer) GetRefRecords(ctx context.Context, r *coordinatorv1.GetRefRecordsRequest) (*coordinatorv1.GetRefRecordsResponse, error) {
	records, err := s.refs.Get(ctx, r.GetKeys()...)
	return answerRefs(&coordinatorv1.GetRefRecordsResponse{Records: encodeRecords(records)}, err)
}

// CondemnRefs condemns the objects whose records are as they were read.
func (s *RefsServer) CondemnRefs(ctx context.Context, r *coordinatorv1.CondemnRefsRequest) (*coordinatorv1.CondemnRefsResponse, error) {
	changed, err := s.refs.Condemn(ctx, r.GetEpochId(), decodeRecords(r.GetRecords())...)
	return answerRefs(&coordinatorv1.CondemnRefsResponse{Changed: changed}, err)
}

// SwapRefRecord writes a record.
func (s *RefsServer) SwapRefRecord(ctx context.Context, r *coordinatorv1.SwapRefRecordRequest) (*coordinatorv1.SwapRefRecordResponse, error) {
	err := s.refs.Swap(ctx, r.GetEpochId(), decodeRecord(r.GetOld()), decodeRecord(r.GetNext()))
	return answerRefs(&coordinatorv1.SwapRefRecordResponse{}, err)
}

// DeleteRefRecords drops records.
func (s *RefsServer) DeleteRefRecords(ctx context.Context, r *coordinatorv1.DeleteRefRecordsRequest) (*coordinatorv1.DeleteRefRecordsResponse, error) {
	changed, err := s.refs.Delete(ctx, r.GetEpochId(), decodeRecords(r.GetRecords())...)
	return answerRefs(&coordinatorv1.DeleteRefRecordsResponse{Changed: changed}, err)
}

// ListRefRecords reads a page.
func (s *RefsServer) ListRefRecords(ctx context.Context, r *coordinatorv1.ListRefRecordsRequest) (*coordinatorv1.ListRefRecordsResponse, error) {
	size := int(r.GetPageSize())
	if size == 0 {
		size = maxRefPage
	}
	if size < 0 || size > maxRefPage {
		return nil, refusal(publish.ErrRefsInvalid)
	}
	records, next, err := s.refs.List(ctx, r.GetPageToken(), size)
	return answerRefs(&coordinatorv1.ListRefRecordsResponse{Records: encodeRecords(records), NextPageToken: next}, err)
}

// answerRefs is resp, or err as a status. A failure that the metadata store did not name
// may have changed something.
func answerRefs[T any](resp *T, err error) (*T, error) {
	if err != nil && !slices.ContainsFunc(refusals, func(r refused) bool { return errors.Is(err, r.sentinel) }) {
		err = fmt.Errorf("%w: %w", publish.ErrRefsUnknown, err)
	}
	return answer(resp, err)
}
