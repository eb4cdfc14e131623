package etcd

import (
	"context"
	"errors"
	"fmt"
	"math"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// ClaimStore is the store of the identity linearizer's claims. Each part of a transaction is a nested transaction of
// etcd, which judges all comparisons before it writes anything.
type ClaimStore struct {
	c *Client
	// kv is the member in this process, or etcd over gRPC.
	kv etcdserverpb.KVClient
}

var _ claims.KV = ClaimStore{}

// NewClaimStore makes a store over a client, which stays the caller's.
func NewClaimStore(c *Client) ClaimStore {
	if c.direct != nil {
		return ClaimStore{c, c.direct}
	}
	return ClaimStore{c, clientv3.RetryKVClient(c.Etcd)}
}

// callOptions are what the client gives its own calls: etcd bounds what it answers by itself.
var callOptions = []grpc.CallOption{grpc.WaitForReady(true), grpc.MaxCallSendMsgSize(2 << 20), grpc.MaxCallRecvMsgSize(math.MaxInt32)}

// Commit runs a transaction. etcd that has forgotten revisions, or is another one, is ErrForgot, and the outcome unknown.
func (s ClaimStore) Commit(ctx context.Context, t claims.Txn) (claims.Result, error) {
	// Checked first, because the client may send a request although its context has ended.
	if err := ctx.Err(); err != nil {
		return claims.Result{}, fmt.Errorf("%w: %w", claims.ErrUnavailable, err)
	}
	before := s.c.revision.Load()
	req := newMessages(t).request(t)
	ctx, cancel := s.c.Bound(ctx)
	defer cancel()
	r, err := s.kv.Txn(ctx, req, callOptions...)
	if err != nil {
		err = clientv3.ContextError(ctx, err)
		outcome := claims.ErrUnknown
		if refused(err) || errors.Is(err, errMemberEnds) {
			outcome = claims.ErrUnavailable
		}
		return claims.Result{}, fmt.Errorf("%w: etcd: %w", outcome, err)
	}
	if err := s.c.at(r.Header, before); err != nil {
		return claims.Result{}, fmt.Errorf("%w: %w: %w", claims.ErrUnknown, claims.ErrForgot, err)
	}
	out := claims.Result{Cluster: r.Header.ClusterId, Revision: r.Header.Revision, Held: r.Succeeded}
	if !r.Succeeded {
		return out, nil
	}
	out.Parts = make([]claims.PartResult, len(r.Responses))
	for i, resp := range r.Responses {
		out.Parts[i] = partResult(t.Parts[i], resp.GetResponseTxn())
	}
	return out, nil
}

func partResult(p claims.Part, r *etcdserverpb.TxnResponse) claims.PartResult {
	out := claims.PartResult{Held: r.GetSucceeded()}
	if out.Held && len(p.Guards) > 0 {
		return out
	}
	for i := range p.Reads {
		kvs := r.GetResponses()[i].GetResponseRange().GetKvs()
		entries := make([]claims.Entry, len(kvs))
		for j, kv := range kvs {
			entries[j] = claims.Entry{Key: string(kv.Key), Value: kv.Value, Created: kv.CreateRevision, Modified: kv.ModRevision}
		}
		out.Reads = append(out.Reads, entries)
	}
	return out
}
