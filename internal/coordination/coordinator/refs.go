package coordinator

import (
	"context"
	"fmt"
	"slices"
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

// Get reads records.
func (r *Refs) Get(ctx context.Context, keys ...string) ([]publish.Record, error) {
	if err := publish.CheckKeys(keys); err != nil {
		return nil, err
	}
	resp, err := refsCall(ctx, r, "get references", keys[0], r.client.GetRefRecords, &coordinatorv1.GetRefRecordsRequest{Keys: keys})
	if err != nil {
		return nil, err
	}
	records := decodeRecords(resp.GetRecords())
	if !slices.Equal(publish.KeysOf(records), keys) {
		return nil, fmt.Errorf("get references %q: %w: the answer is of other objects", keys[0], publish.ErrRefsUnknown)
	}
	return records, nil
}

// Condemn condemns the objects whose records are as they were read.
func (r *Refs) Condemn(ctx context.Context, epoch string, read ...publish.Record) ([]string, error) {
	if err := publish.CheckKeys(publish.KeysOf(read)); err != nil {
		return nil, err
	}
	req := &coordinatorv1.CondemnRefsRequest{EpochId: epoch, Records: versions(read)}
	resp, err := refsCall(ctx, r, "condemn", read[0].Key, r.client.CondemnRefs, req)
	return resp.GetChanged(), err
}

// versions are records as far as a change needs them: key and version say it all.
func versions(read []publish.Record) []*coordinatorv1.RefRecord {
	out := make([]*coordinatorv1.RefRecord, len(read))
	for i := range read {
		out[i] = &coordinatorv1.RefRecord{Key: read[i].Key, Version: read[i].Version}
	}
	return out
}

// Swap writes a record if it is still as it was read.
func (r *Refs) Swap(ctx context.Context, epoch string, old, next publish.Record) error {
	req := &coordinatorv1.SwapRefRecordRequest{EpochId: epoch, Old: encodeRecord(old), Next: encodeRecord(next)}
	_, err := refsCall(ctx, r, "swap references", old.Key, r.client.SwapRefRecord, req)
	return err
}

// Delete drops the records that are still as they were read.
func (r *Refs) Delete(ctx context.Context, epoch string, read ...publish.Record) ([]string, error) {
	if err := publish.CheckKeys(publish.KeysOf(read)); err != nil {
		return nil, err
	}
	req := &coordinatorv1.DeleteRefRecordsRequest{EpochId: epoch, Records: versions(read)}
	resp, err := refsCall(ctx, r, "delete references", read[0].Key, r.client.DeleteRefRecords, req)
	return resp.GetChanged(), err
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
	return decodeRecords(resp.GetRecords()), resp.GetNextPageToken(), nil
}
