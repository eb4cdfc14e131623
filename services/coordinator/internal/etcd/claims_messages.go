package etcd

import (
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
)

// messages makes etcd's messages of one transaction of claims. The client's builders copy every comparison three times, and
// a claim has some twenty messages, so these come from a few slices that are as long as the transaction needs.
type messages struct {
	compares slab[etcdserverpb.Compare]
	mods     slab[etcdserverpb.Compare_ModRevision]
	created  slab[etcdserverpb.Compare_CreateRevision]
	ops      slab[etcdserverpb.RequestOp]
	puts     slab[put]
	ranges   slab[etcdserverpb.RangeRequest]
	reads    slab[etcdserverpb.RequestOp_RequestRange]
	txns     slab[etcdserverpb.TxnRequest]
	nested   slab[etcdserverpb.RequestOp_RequestTxn]
	// The lists of all messages, and the bytes of all keys.
	compareLists slab[*etcdserverpb.Compare]
	opLists      slab[*etcdserverpb.RequestOp]
	keys         slab[byte]
}

// put is a PutRequest and what wraps it.
type put struct {
	request etcdserverpb.PutRequest
	wrap    etcdserverpb.RequestOp_RequestPut
}

// slab is a slice that gives its elements out, one or several at a time.
type slab[T any] []T

func (s *slab[T]) one() *T { return &s.some(1)[0] }

func (s *slab[T]) some(n int) []T {
	// Capped, so that whoever appends gets another array.
	out := (*s)[:n:n]
	*s = (*s)[n:]
	return out
}

// newMessages has room for the messages of a transaction.
func newMessages(t claims.Txn) *messages {
	var guards, created, ops, puts, reads, keys int
	count := func(gs []claims.Guard) {
		guards += len(gs)
		for _, g := range gs {
			if keys += len(g.Key) + len(g.End); g.Is == claims.Created {
				created++
			}
		}
	}
	count(t.Guards)
	for _, p := range t.Parts {
		count(p.Guards)
		ops += 1 + len(p.Puts) + len(p.Deletes) + len(p.Reads)
		puts += len(p.Puts)
		reads += len(p.Reads)
		for _, w := range p.Puts {
			keys += len(w.Key)
		}
		for _, key := range p.Deletes {
			keys += len(key)
		}
		for _, q := range p.Reads {
			keys += len(q.From) + len(q.End)
		}
	}
	n := len(t.Parts)
	return &messages{
		compares: make([]etcdserverpb.Compare, guards), mods: make([]etcdserverpb.Compare_ModRevision, guards-created), created: make([]etcdserverpb.Compare_CreateRevision, created),
		ops: make([]etcdserverpb.RequestOp, ops), puts: make([]put, puts), ranges: make([]etcdserverpb.RangeRequest, reads), reads: make([]etcdserverpb.RequestOp_RequestRange, reads),
		txns: make([]etcdserverpb.TxnRequest, n+1), nested: make([]etcdserverpb.RequestOp_RequestTxn, n),
		compareLists: make([]*etcdserverpb.Compare, guards), opLists: make([]*etcdserverpb.RequestOp, ops), keys: make([]byte, keys),
	}
}

func (m *messages) key(s string) []byte {
	b := m.keys.some(len(s))
	copy(b, s)
	return b
}

// request is the transaction; each part is a transaction of its own in it.
func (m *messages) request(t claims.Txn) *etcdserverpb.TxnRequest {
	r := m.txns.one()
	r.Compare, r.Success = m.guards(t.Guards), m.opLists.some(len(t.Parts))
	for i, p := range t.Parts {
		r.Success[i] = m.part(p)
	}
	return r
}

func (m *messages) part(p claims.Part) *etcdserverpb.RequestOp {
	txn := m.txns.one()
	lists := m.opLists.some(len(p.Reads) + len(p.Puts) + len(p.Deletes))
	reads, then := lists[:len(p.Reads)], lists[len(p.Reads):]
	for i, q := range p.Reads {
		reads[i] = m.read(q)
	}
	for i, w := range p.Puts {
		x := m.puts.one()
		x.request.Key, x.request.Value = m.key(w.Key), w.Value
		x.wrap.RequestPut = &x.request
		then[i] = m.ops.one()
		then[i].Request = &x.wrap
	}
	for i, key := range p.Deletes {
		op := m.ops.one()
		op.Request = &etcdserverpb.RequestOp_RequestDeleteRange{RequestDeleteRange: &etcdserverpb.DeleteRangeRequest{Key: m.key(key)}}
		then[len(p.Puts)+i] = op
	}
	if txn.Compare, txn.Success, txn.Failure = m.guards(p.Guards), then, reads; len(p.Guards) == 0 {
		txn.Success, txn.Failure = lists, nil
	}
	op, nested := m.ops.one(), m.nested.one()
	nested.RequestTxn = txn
	op.Request = nested
	return op
}

func (m *messages) read(q claims.Range) *etcdserverpb.RequestOp {
	r := m.ranges.one()
	r.Key = m.key(q.From)
	if q.End != "" {
		r.RangeEnd, r.Limit = m.key(q.End), q.Limit
	}
	op, wrap := m.ops.one(), m.reads.one()
	wrap.RequestRange = r
	op.Request = wrap
	return op
}

func (m *messages) guards(guards []claims.Guard) []*etcdserverpb.Compare {
	out := m.compareLists.some(len(guards))
	for i, g := range guards {
		c := m.compares.one()
		out[i] = c
		c.Key, c.Result, c.Target = m.key(g.Key), etcdserverpb.Compare_EQUAL, etcdserverpb.Compare_MOD
		switch g.Is {
		case claims.Created:
			of := m.created.one()
			of.CreateRevision = g.Revision
			c.Target, c.TargetUnion = etcdserverpb.Compare_CREATE, of
			continue
		case claims.Holds:
			c.Target, c.TargetUnion = etcdserverpb.Compare_VALUE, &etcdserverpb.Compare_Value{Value: g.Value}
			continue
		}
		of := m.mods.one()
		c.TargetUnion = of
		switch g.Is {
		case claims.Modified:
			of.ModRevision = g.Revision
		case claims.NotSince:
			c.Result, of.ModRevision = etcdserverpb.Compare_LESS, g.Revision+1
		default:
			// No key has revision 0; a range without keys compares as one.
			if g.End != "" {
				c.RangeEnd = m.key(g.End)
			}
		}
	}
	return out
}
