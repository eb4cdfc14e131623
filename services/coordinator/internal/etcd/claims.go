package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// ClaimStore is the store of the identity linearizer's claims. Each part of a transaction is a nested transaction of
// etcd, which judges all comparisons before it writes anything.
type ClaimStore struct{ c *Client }

var _ claims.KV = ClaimStore{}

// NewClaimStore makes a store over a client, which stays the caller's.
func NewClaimStore(c *Client) ClaimStore { return ClaimStore{c} }

func (s ClaimStore) kv() clientv3.KV {
	if s.c.direct != nil {
		return s.c.direct
	}
	return s.c.Etcd
}

// Commit runs a transaction. etcd that has forgotten revisions, or is another one, is ErrForgot, and the outcome unknown.
func (s ClaimStore) Commit(ctx context.Context, t claims.Txn) (claims.Result, error) {
	// Checked first, because the client may send a request although its context has ended.
	if err := ctx.Err(); err != nil {
		return claims.Result{}, fmt.Errorf("%w: %w", claims.ErrUnavailable, err)
	}
	before := s.c.revision.Load()
	ops := make([]clientv3.Op, len(t.Parts))
	for i, p := range t.Parts {
		ops[i] = nested(p)
	}
	ctx, cancel := s.c.Bound(ctx)
	defer cancel()
	r, err := s.kv().Txn(ctx).If(compares(t.Guards)...).Then(ops...).Commit()
	if err != nil {
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

// nested is a part as a transaction of its own.
func nested(p claims.Part) clientv3.Op {
	then := make([]clientv3.Op, 0, len(p.Puts)+len(p.Deletes))
	for _, w := range p.Puts {
		then = append(then, clientv3.OpPut(w.Key, string(w.Value)))
	}
	for _, key := range p.Deletes {
		then = append(then, clientv3.OpDelete(key))
	}
	reads := make([]clientv3.Op, len(p.Reads))
	for i, q := range p.Reads {
		reads[i] = readRange(q)
	}
	if len(p.Guards) == 0 {
		return clientv3.OpTxn(nil, append(reads, then...), nil)
	}
	return clientv3.OpTxn(compares(p.Guards), then, reads)
}

func readRange(q claims.Range) clientv3.Op {
	if q.End == "" {
		return clientv3.OpGet(q.From)
	}
	return clientv3.OpGet(q.From, clientv3.WithRange(q.End), clientv3.WithLimit(q.Limit))
}

func compares(guards []claims.Guard) []clientv3.Cmp {
	out := make([]clientv3.Cmp, len(guards))
	for i, g := range guards {
		switch {
		case g.Is == claims.Created:
			out[i] = clientv3.Compare(clientv3.CreateRevision(g.Key), "=", g.Revision)
		case g.Is == claims.Modified:
			out[i] = clientv3.Compare(clientv3.ModRevision(g.Key), "=", g.Revision)
		case g.Is == claims.Holds:
			out[i] = clientv3.Compare(clientv3.Value(g.Key), "=", string(g.Value))
		case g.Is == claims.NotSince:
			out[i] = clientv3.Compare(clientv3.ModRevision(g.Key), "<", g.Revision+1)
		case g.End != "":
			// No key has revision 0; a range without keys compares as one.
			out[i] = clientv3.Compare(clientv3.ModRevision(g.Key), "=", 0).WithRange(g.End)
		default:
			out[i] = clientv3.Compare(clientv3.ModRevision(g.Key), "=", 0)
		}
	}
	return out
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
