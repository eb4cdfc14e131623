package etcd

// The queue and the table of pending work in etcd.
//
// Expiry is by leases, so that one notion of time, that of etcd's leader, decides: clocks
// of clients do not matter. A lease is never safety. Every change is one transaction that
// compares the revisions of what it was decided by, and Row.Increment is the row's mod
// revision. Keys are below the prefix:
//
//	rows/<log>/<20 digits>    a pending job
//	holds/<log>/<20 digits>   on a lease: its owner is alive
//	logs/<log>/               the last completed number
//	queue/<topic>/m/<id>      a message
//	queue/<topic>/h/<id>      on a lease: it is hidden
//	queue/<topic>/u/<key>     the dedupe key of a message that was never delivered
//	queue/<topic>/d/<id>      a dead letter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

// PendingOptions of New.
type PendingOptions struct {
	// Prefix of all keys, without a slash at the end, such as /lightmetrics/work/v1.
	Prefix string
	// Timeout bounds each request to etcd; 0 means 2 s.
	Timeout time.Duration
	// MaxTries is how often a message is delivered; 0 means work.DefaultMaxTries.
	MaxTries int
	// MaxDead letters of a topic are kept; 0 means work.MaxDeadLetters.
	MaxDead int
	// Now gives the times that people see, and no decision reads. nil is the wall clock.
	Now func() time.Time
}

// PendingWork is both the queue and the table. It is safe for concurrent use.
type PendingWork struct {
	c *clientv3.Client
	o PendingOptions
}

var (
	_ work.Queue = (*PendingWork)(nil)
	_ work.Table = (*PendingWork)(nil)
)

// NewPendingWork makes a store over a client, which stays the caller's.
func NewPendingWork(c *clientv3.Client, o PendingOptions) *PendingWork {
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Second
	}
	if o.MaxTries <= 0 {
		o.MaxTries = work.DefaultMaxTries
	}
	if o.MaxDead <= 0 {
		o.MaxDead = work.MaxDeadLetters
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &PendingWork{c: c, o: o}
}

// moves is how often a change is decided again because what it was decided by had changed.
const moves = 16

// call is one operation, for its errors.
type call struct {
	*PendingWork
	op, key string
}

func (c call) fail(err error) error { return &work.Error{Op: c.op, Key: c.key, Err: err} }

// lost is the error of a request that failed. Of a change it is ErrUnknown, since etcd may have made it, unless etcd
// refused it.
func (c call) lost(err error, change bool) error {
	s := work.ErrUnavailable
	if change && !refused(err) {
		s = work.ErrUnknown
	}
	return c.fail(fmt.Errorf("%w: etcd: %w", s, err))
}

// refused reports that etcd answered that it did not do what was asked for.
func refused(err error) bool {
	for _, e := range []error{rpctypes.ErrNoSpace, rpctypes.ErrTooManyRequests, rpctypes.ErrLeaseNotFound, rpctypes.ErrPermissionDenied,
		rpctypes.ErrRequestTooLarge, rpctypes.ErrInvalidAuthToken, rpctypes.ErrUserEmpty} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// read runs reads at one revision.
func (c call) read(ctx context.Context, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	// Checked first, because the client may send a request although its context has ended.
	if err := ctx.Err(); err != nil {
		return nil, c.lost(err, false)
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.c.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, c.lost(err, false)
	}
	return r, nil
}

// write runs a transaction; false: a comparison did not hold and nothing was written.
func (c call) write(ctx context.Context, cmps []clientv3.Cmp, ops ...clientv3.Op) (*clientv3.TxnResponse, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.c.Txn(ctx).If(cmps...).Then(ops...).Commit()
	if err != nil {
		return nil, false, c.lost(err, true)
	}
	return r, r.Succeeded, nil
}

// grant makes a lease. etcd counts whole seconds, and has a least time of its own.
func (c call) grant(ctx context.Context, d time.Duration) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	r, err := c.c.Grant(ctx, seconds(d))
	if err != nil {
		return 0, c.lost(err, false) // at worst a lease without keys, which ends
	}
	return r.ID, nil
}

// drop ends a lease that is of no use any more. If that fails, it ends by itself.
func (c call) drop(ctx context.Context, id clientv3.LeaseID) {
	if id == 0 {
		return
	}
	// Also when the caller's context has ended: a lease that stays would hide a message for its whole time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.o.Timeout)
	defer cancel()
	_, _ = c.c.Revoke(ctx, id)
}

// renew starts a lease's time again; false when it has ended.
func (c call) renew(ctx context.Context, id clientv3.LeaseID) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	switch _, err := c.c.KeepAliveOnce(ctx, id); {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return false, nil
	case err != nil:
		return false, c.lost(err, false) // renewed or not, nothing depends on it
	}
	return true, nil
}

func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// first is the only entry of the i-th read, nil when there is none.
func first(r *clientv3.TxnResponse, i int) *mvccpb.KeyValue {
	if kvs := r.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}

// unchanged compares a key with what a read gave; absent stays absent.
func unchanged(key string, kv *mvccpb.KeyValue) clientv3.Cmp {
	if kv == nil {
		return clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	}
	return clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)
}

// get decodes a value. A damaged one is an error, and stays one however often it is read.
func get[V value](c call, kv *mvccpb.KeyValue, v *V) error {
	if err := decode(kv, v); err != nil {
		return c.fail(fmt.Errorf("%w: etcd: %w", work.ErrUnavailable, err))
	}
	return nil
}
