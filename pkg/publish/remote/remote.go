// Package remote is a metadata store that the coordinator keeps: reference sets over
// RefsService.
package remote

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/pkg/publish"
	"lightmetrics.dev/lightmetrics/pkg/publish/wire"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// DefaultTimeout bounds one call.
const DefaultTimeout = 10 * time.Second

// maxAnswer is above the page that List asks for: records of MaxTxns transactions.
const (
	maxAnswer = 64 << 20
	maxPage   = 200
)

// Refs is safe for concurrent use.
type Refs struct {
	client  coordinatorv1.RefsServiceClient
	timeout time.Duration
}

var _ publish.Refs = (*Refs)(nil)

// New makes a metadata store over conn; timeout 0 is DefaultTimeout.
func New(conn grpc.ClientConnInterface, timeout time.Duration) *Refs {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return &Refs{client: coordinatorv1.NewRefsServiceClient(conn), timeout: timeout}
}

func call[Q, A any](ctx context.Context, r *Refs, op, key string, fn func(context.Context, *Q, ...grpc.CallOption) (*A, error), req *Q) (*A, error) {
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	resp, err := fn(bounded, req, grpc.MaxCallRecvMsgSize(maxAnswer))
	if err == nil {
		return resp, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s %q: %w: %w", op, key, publish.ErrRefsUnknown, ctx.Err())
	}
	if s := wire.FromReason(rpc.Reason(err)); s != nil {
		return nil, fmt.Errorf("%s %q: %w: %s", op, key, s, status.Convert(err).Message())
	}
	if status.Code(err) == codes.InvalidArgument {
		return nil, fmt.Errorf("%s %q: %w: %w", op, key, publish.ErrRefsInvalid, err)
	}
	return nil, fmt.Errorf("%s %q: %w: %w", op, key, publish.ErrRefsUnknown, err)
}

// Founding reads the store's founding.
func (r *Refs) Founding(ctx context.Context) (publish.Founding, error) {
	resp, err := call(ctx, r, "founding", "", r.client.GetFounding, &coordinatorv1.GetFoundingRequest{})
	return wire.ToFounding(resp.GetFounding()), err
}

// Found replaces the founding.
func (r *Refs) Found(ctx context.Context, old *publish.Founding, next publish.Founding) error {
	req := &coordinatorv1.FoundRefsRequest{Next: wire.FromFounding(next)}
	if old != nil {
		req.Old = wire.FromFounding(*old)
	}
	_, err := call(ctx, r, "found", "", r.client.FoundRefs, req)
	return err
}

// Add puts t into the sets of keys, all or none.
func (r *Refs) Add(ctx context.Context, founding string, t publish.Txn, keys []string) error {
	if err := publish.CheckAdd(t, keys); err != nil {
		return err
	}
	req := &coordinatorv1.AddRefsRequest{FoundingId: founding, Transaction: string(t), Keys: keys}
	resp, err := call(ctx, r, "add references", keys[0], r.client.AddRefs, req)
	if err == nil && len(resp.GetCondemned()) > 0 {
		return &publish.CondemnedError{Keys: resp.GetCondemned()}
	}
	return err
}

// Get reads a record.
func (r *Refs) Get(ctx context.Context, key string) (publish.Record, error) {
	resp, err := call(ctx, r, "get references", key, r.client.GetRefRecord, &coordinatorv1.GetRefRecordRequest{Key: key})
	if err != nil {
		return publish.Record{}, err
	}
	return wire.ToRecord(resp.GetRecord()), nil
}

// Swap writes a record if it is as it was read.
func (r *Refs) Swap(ctx context.Context, founding string, old, next publish.Record) error {
	req := &coordinatorv1.SwapRefRecordRequest{FoundingId: founding, Old: wire.FromRecord(old), Next: wire.FromRecord(next)}
	_, err := call(ctx, r, "swap references", old.Key, r.client.SwapRefRecord, req)
	return err
}

// Delete drops a record if it is as it was read.
func (r *Refs) Delete(ctx context.Context, founding string, old publish.Record) error {
	req := &coordinatorv1.DeleteRefRecordRequest{FoundingId: founding, Old: wire.FromRecord(old)}
	_, err := call(ctx, r, "delete references", old.Key, r.client.DeleteRefRecord, req)
	return err
}

// List reads a page.
func (r *Refs) List(ctx context.Context, after string, limit int) ([]publish.Record, string, error) {
	if limit <= 0 || limit > maxPage {
		limit = maxPage
	}
	resp, err := call(ctx, r, "list references", after, r.client.ListRefRecords,
		&coordinatorv1.ListRefRecordsRequest{PageToken: after, PageSize: int32(limit)})
	if err != nil {
		return nil, "", err
	}
	var records []publish.Record
	for _, m := range resp.GetRecords() {
		records = append(records, wire.ToRecord(m))
	}
	return records, resp.GetNextPageToken(), nil
}
