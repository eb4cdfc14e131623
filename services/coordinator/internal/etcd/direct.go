package etcd

import (
	"context"
	"errors"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// direct hands transactions to a member in this process without gRPC: no socket, no HTTP/2 frames, no second encoding.
// What the member's gRPC server checks of a transaction it checks here too, except that no slow request is logged.
//
// Only transactions come this way. Reads, leases and watches stay with the client over the socket, which tries reads
// again while members elect a leader and ends watches when there is none; a transaction it never tries again either.
type direct struct {
	etcdserverpb.KVClient // of everything but transactions, which nobody asks of it
	kv                    etcdserverpb.KVServer

	// ended ends calls that are under way when the member is closed; they hold calls meanwhile, because a member that
	// is closed under a call may panic.
	ended context.Context
	end   context.CancelFunc
	calls sync.RWMutex
}

var errMemberEnds = errors.New("the etcd member in this process ends")

func newDirect(s *etcdserver.EtcdServer) *direct {
	d := &direct{kv: v3rpc.NewQuotaKVServer(s)}
	d.ended, d.end = context.WithCancel(context.Background())
	return d
}

// Txn implements etcdserverpb.KVClient.
func (d *direct) Txn(ctx context.Context, r *etcdserverpb.TxnRequest, _ ...grpc.CallOption) (*etcdserverpb.TxnResponse, error) {
	d.calls.RLock()
	defer d.calls.RUnlock()
	if d.ended.Err() != nil {
		return nil, errMemberEnds
	}
	// What the caller was asked with, by a collector say, is nothing that the member should take for its own.
	ctx, cancel := context.WithCancel(metadata.NewIncomingContext(ctx, metadata.MD{}))
	defer cancel()
	defer context.AfterFunc(d.ended, cancel)()
	return d.kv.Txn(ctx, r)
}

// close ends what is under way, and returns when nothing is.
func (d *direct) close() {
	d.end()
	d.calls.Lock()
	defer d.calls.Unlock()
}

// Direct has stores of claims that are made from now on hand their transactions to a member in this process, which must be the one
// that the client was dialled to.
func (c *Client) Direct(m *Embedded) { c.direct = m.direct }
