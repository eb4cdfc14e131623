package coordinator

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// maxRefs is how many records a page of List asks for, so that it fits into maxAnswer.
const maxRefs = 200

// Refs is the metadata store of reference sets that the coordinator keeps. It is safe for
// concurrent use.
type Refs struct {
	client coordinatorv1.RefsServiceClient
	service
}

var _ publish.Refs = (*Refs)(nil)

// NewRefs makes a client over conn, which stays the caller's; timeout bounds one call, and
// 0 is DefaultTimeout.
func NewRefs(conn grpc.ClientConnInterface, timeout time.Duration) *Refs {
	return &Refs{coordinatorv1.NewRefsServiceClient(conn), newService(timeout, publish.ErrRefsInvalid, publish.ErrRefsUnknown,
		func(op, key string, err error) error { return fmt.Errorf("%s %q: %w", op, key, err) })}
}

// refsCall makes one call. Without an answer it may have taken effect.
func refsCall[Q, A any](ctx context.Context, r *Refs, op, key string, fn func(context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (*A, error) {
	return call(ctx, r.service, op, key, publish.ErrRefsUnknown, fn, req)
}

// Epoch reads the store's epoch.
func (r *Refs) Epoch(ctx context.Context) (publish.Epoch, error) {
	resp, err := refsCall(ctx, r, "epoch", "", r.client.GetEpoch, &coordinatorv1.GetEpochRequest{})
	return decodeEpoch(resp.GetEpoch()), err
}

// InitEpoch replaces the epoch.
func (r *Refs) InitEpoch(ctx context.Context, old *publish.Epoch, next publish.Epoch) error {
	req := &coordinatorv1.InitEpochRequest{Next: encodeEpoch(next)}
	if old != nil {
		req.Old = encodeEpoch(*old)
	}
	_, err := refsCall(ctx, r, "init epoch", "", r.client.InitEpoch, req)
	return err
}

// Add puts transactions into the reference sets of objects, all or none.
func (r *Refs) Add(ctx context.Context, epoch string, add ...publish.Addition) error {
	if err := publish.CheckAdd(add); err != nil {
		return err
	}
	req := &coordinatorv1.AddRefsRequest{EpochId: epoch}
	for _, a := range add {
		req.Additions = append(req.Additions, &coordinatorv1.RefAddition{Transaction: string(a.Txn), Keys: a.Keys})
	}
	resp, err := refsCall(ctx, r, "add references", add[0].Keys[0], r.client.AddRefs, req)
	if err == nil && len(resp.GetCondemned()) > 0 {
		return &publish.CondemnedError{Keys: resp.GetCondemned()}
	}
	return err
}

// Get reads a record.
func (r *Refs) Get(ctx context.Context, key string) (publish.Record, error) {
	resp, err := refsCall(ctx, r, "get references", key, r.client.GetRefRecord, &coordinatorv1.GetRefRecordRequest{Key: key})
	if err != nil {
		return publish.Record{}, err
	}
	return decodeRecord(resp.GetRecord()), nil
}

// Swap writes a record if it is still as it was read.
func (r *Refs) Swap(ctx context.Context, epoch string, old, next publish.Record) error {
	req := &coordinatorv1.SwapRefRecordRequest{EpochId: epoch, Old: encodeRecord(old), Next: encodeRecord(next)}
	_, err := refsCall(ctx, r, "swap references", old.Key, r.client.SwapRefRecord, req)
	return err
}

// Delete drops a record if it is still as it was read.
func (r *Refs) Delete(ctx context.Context, epoch string, old publish.Record) error {
	req := &coordinatorv1.DeleteRefRecordRequest{EpochId: epoch, Old: encodeRecord(old)}
	_, err := refsCall(ctx, r, "delete references", old.Key, r.client.DeleteRefRecord, req)
	return err
}

// List reads a page.
func (r *Refs) List(ctx context.Context, after string, limit int) ([]publish.Record, string, error) {
	if limit <= 0 || limit > maxRefs {
		limit = maxRefs
	}
	resp, err := refsCall(ctx, r, "list references", after, r.client.ListRefRecords,
		&coordinatorv1.ListRefRecordsRequest{PageToken: after, PageSize: int32(limit)})
	if err != nil {
		return nil, "", err
	}
	var records []publish.Record
	for _, m := range resp.GetRecords() {
		records = append(records, decodeRecord(m))
	}
	return records, resp.GetNextPageToken(), nil
}
