// The reference sets of published objects in etcd.
//
// Every change is one transaction. Keys are below the prefix; \0 ends an object's key, so
// that the order of objects is that of their keys:
//
//	epoch/id                 the epoch's token: its id and era
//	epoch/state              the epoch, JSON
//	record/<object>\0b          the base of the record: what Swap wrote
//	record/<object>\0c          the object is condemned; its value is the first generation of the era, empty for 0
//	record/<object>\0t<txn>     a reference that was added since
//
// A reference is a small key of its own, so that adding one to 99 objects needs no
// reading and stays far below etcd's bounds of a request, however long the sets are.
// What else a condemned record has says nothing.

package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
)

// Refs is the metadata store of reference sets. It is safe for concurrent use.
type Refs struct {
	c       *clientv3.Client
	prefix  string
	timeout time.Duration
}

var _ publish.Refs = (*Refs)(nil)

// DefaultTimeout bounds a request.
const DefaultTimeout = 2 * time.Second

// NewRefs makes a store over a client, which stays the caller's. prefix has no trailing slash, such as
// /lightmetrics/refs/v1. timeout 0 means DefaultTimeout.
func NewRefs(c *clientv3.Client, prefix string, timeout time.Duration) *Refs {
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	return &Refs{c, prefix, timeout}
}

func (r *Refs) epochID() string          { return r.prefix + "/epoch/id" }
func (r *Refs) epochState() string       { return r.prefix + "/epoch/state" }
func (r *Refs) records() string          { return r.prefix + "/record/" }
func (r *Refs) record(key string) string { return r.records() + key + "\x00" }
func (r *Refs) inEpoch(token string) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(r.epochID()), "=", token)
}

// condemned is the value of the mark of an object that is condemned under the token.
func condemned(token string) string {
	if n := publish.TokenGeneration(token); n > 0 {
		return strconv.FormatUint(uint64(n), 10)
	}
	return ""
}

// txn runs one transaction.
func (r *Refs) txn(ctx context.Context, op, key string, cmps []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s %q: %w: %w", op, key, publish.ErrRefsUnknown, err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	resp, err := r.c.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
	if err == nil {
		return resp, nil
	}
	kind := publish.ErrRefsUnknown
	if errors.Is(err, rpctypes.ErrRequestTooLarge) || errors.Is(err, rpctypes.ErrTooManyOps) || errors.Is(err, rpctypes.ErrDuplicateKey) {
		kind = publish.ErrRefsInvalid
	}
	return nil, fmt.Errorf("%s %q: %w: etcd: %w", op, key, kind, err)
}

// Epoch reads the epoch.
func (r *Refs) Epoch(ctx context.Context) (publish.Epoch, error) {
	var none publish.Epoch
	resp, err := r.txn(ctx, "epoch", "", nil, []clientv3.Op{clientv3.OpGet(r.epochState())}, nil)
	if err != nil {
		return none, err
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 {
		return none, fmt.Errorf("epoch: %w", publish.ErrNoRecord)
	}
	var v refEpoch
	if err := decode(kvs[0], &v); err != nil {
		return none, fmt.Errorf("epoch: %w: %w", publish.ErrRefsInvalid, err)
	}
	return v.Epoch, nil
}

// InitEpoch replaces the epoch if it is still old.
func (r *Refs) InitEpoch(ctx context.Context, old *publish.Epoch, next publish.Epoch) error {
	cmp := clientv3.Compare(clientv3.CreateRevision(r.epochState()), "=", 0)
	if old != nil {
		cmp = clientv3.Compare(clientv3.Value(r.epochState()), "=", encode(refEpoch{*old}))
	}
	resp, err := r.txn(ctx, "init epoch", "", []clientv3.Cmp{cmp}, []clientv3.Op{
		clientv3.OpPut(r.epochState(), encode(refEpoch{next})), clientv3.OpPut(r.epochID(), next.Token()),
	}, nil)
	if err == nil && !resp.Succeeded {
		err = fmt.Errorf("init epoch: %w", publish.ErrChanged)
	}
	return err
}

// Add puts transactions into the sets of keys, all or none. That no set exceeds MaxTxns is checked before, in another
// transaction, so racing calls can exceed it by their number. New objects, which are nearly all, have no sets, and need
// one transaction for both.
func (r *Refs) Add(ctx context.Context, epoch string, add ...publish.Addition) error {
	if err := publish.CheckAdd(add); err != nil {
		return err
	}
	keys := keysOf(add)
	var puts, marks []clientv3.Op
	// Read only if the comparisons fail, in the same transaction: a later read could see another state than the one
	// that refused.
	marks = append(marks, clientv3.OpGet(r.epochID()))
	absent, uncondemned := []clientv3.Cmp{r.inEpoch(epoch)}, []clientv3.Cmp{r.inEpoch(epoch)}
	for _, k := range keys {
		absent = append(absent, clientv3.Compare(clientv3.CreateRevision(r.record(k)), "=", 0).WithPrefix())
		uncondemned = append(uncondemned, clientv3.Compare(clientv3.CreateRevision(r.record(k)+"c"), "=", 0))
		marks = append(marks, clientv3.OpGet(r.record(k)+"c", clientv3.WithCountOnly()))
	}
	for _, a := range add {
		for _, k := range a.Keys {
			// Putting a reference that exists changes nothing but its revision, so a repeated Add is harmless.
			puts = append(puts, clientv3.OpPut(r.record(k)+"t"+string(a.Txn), ""))
		}
	}
	resp, err := r.txn(ctx, "add", keys[0], absent, puts, []clientv3.Op{clientv3.OpGet(r.epochID())})
	if err != nil || resp.Succeeded {
		return err
	}
	if err := r.checkRoom(ctx, add); err != nil {
		return err
	}
	resp, err = r.txn(ctx, "add", keys[0], uncondemned, puts, marks)
	if err != nil || resp.Succeeded {
		return err
	}
	// The comparisons do not say which of them failed, so the marks were read in the same transaction.
	var condemned []string
	for i, k := range keys {
		if resp.Responses[i+1].GetResponseRange().Count > 0 {
			condemned = append(condemned, k)
		}
	}
	if id := resp.Responses[0].GetResponseRange().Kvs; len(id) == 0 || string(id[0].Value) != epoch || condemned == nil {
		return fmt.Errorf("add %q: %w", keys[0], publish.ErrEpochMismatch)
	}
	return &publish.CondemnedError{Keys: condemned}
}

// keysOf gives the keys of additions, each once: two transactions may refer to the same object.
func keysOf(add []publish.Addition) (keys []string) {
	for _, a := range add {
		keys = append(keys, a.Keys...)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// checkRoom refuses keys whose sets are full and do not have what is to be added.
func (r *Refs) checkRoom(ctx context.Context, add []publish.Addition) error {
	keys := keysOf(add)
	ops := make([]clientv3.Op, len(keys))
	for i, k := range keys {
		// The base sorts first. With one, the number of keys says nothing about the number of transactions.
		ops[i] = clientv3.OpGet(r.record(k), clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	}
	resp, err := r.txn(ctx, "add", keys[0], nil, ops, nil)
	if err != nil {
		return err
	}
	for i, k := range keys {
		page := resp.Responses[i].GetResponseRange()
		if n := int(page.Count); n == 0 || n+len(add) <= publish.MaxTxns && string(page.Kvs[0].Key) != r.record(k)+"b" {
			continue
		}
		recs, err := r.Get(ctx, k)
		if err != nil {
			return err
		}
		rec := recs[0]
		for _, a := range add {
			if !slices.Contains(a.Keys, k) {
				continue
			}
			next, isNew := rec.With(a.Txn)
			if isNew && len(rec.Txns) >= publish.MaxTxns {
				return fmt.Errorf("add to %q: %w", k, publish.ErrRefsFull)
			}
			rec = next
		}
	}
	return nil
}

// refEpoch is the epoch of the reference sets.
type refEpoch struct{ publish.Epoch }

// base is the part of a record that Swap writes.
type base struct {
	Txns      []publish.Txn `json:"txns"`
	Condemned bool          `json:"condemned"`
}

// Get reads records.
func (r *Refs) Get(ctx context.Context, keys ...string) ([]publish.Record, error) {
	if err := publish.CheckKeys(keys); err != nil {
		return nil, err
	}
	ops := make([]clientv3.Op, len(keys))
	for i, k := range keys {
		ops[i] = clientv3.OpGet(r.record(k), clientv3.WithPrefix())
	}
	resp, err := r.txn(ctx, "get", keys[0], nil, ops, nil)
	if err != nil {
		return nil, err
	}
	records := make([]publish.Record, len(keys))
	for i, k := range keys {
		if records[i], err = r.parse(k, resp.Responses[i].GetResponseRange().Kvs); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// parse makes a record of an object's keys, of which there may be none. Its version is the newest of the keys with its
// revision.
func (r *Refs) parse(key string, kvs []*mvccpb.KeyValue) (publish.Record, error) {
	rec := publish.Record{Key: key}
	var rev int64
	for _, kv := range kvs {
		part := strings.TrimPrefix(string(kv.Key), r.record(key))
		if kv.ModRevision >= rev {
			rev = kv.ModRevision
			rec.Version = strconv.FormatInt(rev, 10) + "/" + part
		}
		// Unknown parts, of a later release, count for the version only.
		switch {
		case part == "b":
			var b base
			if err := decode(kv, &b); err != nil {
				return rec, fmt.Errorf("record %q: %w: %w", key, publish.ErrRefsInvalid, err)
			}
			rec.Txns = append(rec.Txns, b.Txns...)
		case part == "c":
			rec.Condemned = true
			since, err := strconv.ParseUint(cmp.Or(string(kv.Value), "0"), 10, 32)
			if err != nil {
				return rec, fmt.Errorf("record %q: %w: %w", key, publish.ErrRefsInvalid, err)
			}
			rec.Since = uint32(since)
		case strings.HasPrefix(part, "t"):
			rec.Txns = append(rec.Txns, publish.Txn(part[1:]))
		}
	}
	if rec.Condemned {
		rec.Txns = nil
	}
	slices.Sort(rec.Txns)
	rec.Txns = slices.Compact(rec.Txns)
	return rec, nil
}

// condemnAtOnce is how many records one transaction condemns, with two comparisons and two changes of each: etcd takes 128
// of either.
const condemnAtOnce = 60

// Condemn condemns the objects whose records are as they were read. One transaction does many. If a record has changed, it
// does none, and each is tried by itself.
func (r *Refs) Condemn(ctx context.Context, epoch string, read ...publish.Record) (changed []string, err error) {
	if err := publish.CheckKeys(publish.KeysOf(read)); err != nil {
		return nil, err
	}
	return changeMany(read, func(part []publish.Record) error { return r.condemn(ctx, epoch, part) })
}

// changeMany changes records by do, which does all of a part or none. If a record of a part has changed, each of them is
// tried by itself.
func changeMany(read []publish.Record, do func([]publish.Record) error) (changed []string, err error) {
	for part := range slices.Chunk(read, condemnAtOnce) {
		err := do(part)
		if errors.Is(err, publish.ErrChanged) {
			var of []string
			of, err = changeEach(part, do)
			changed = append(changed, of...)
		}
		if err != nil {
			return nil, err
		}
	}
	return changed, nil
}

// changeEach changes each of the records by itself.
func changeEach(read []publish.Record, do func([]publish.Record) error) (changed []string, err error) {
	for i := range read {
		err := do(read[i : i+1])
		switch {
		case errors.Is(err, publish.ErrChanged):
			changed = append(changed, read[i].Key)
		case err != nil:
			return nil, err
		}
	}
	return changed, nil
}

// condemn condemns all of the records, or none.
func (r *Refs) condemn(ctx context.Context, epoch string, read []publish.Record) error {
	var ops []clientv3.Op
	for _, old := range read {
		at := r.record(old.Key)
		ops = append(ops, clientv3.OpDelete(at+"t", clientv3.WithRange(at+"u")), clientv3.OpPut(at+"c", condemned(epoch)))
	}
	return r.change(ctx, "condemn", epoch, read, ops)
}

// Swap writes next if the record is still as it was read.
func (r *Refs) Swap(ctx context.Context, epoch string, old, next publish.Record) error {
	at := r.record(old.Key)
	ops := []clientv3.Op{
		// The base takes over every reference that was added one by one; "u" is the end of the range of keys that
		// begin with "t".
		clientv3.OpDelete(at+"t", clientv3.WithRange(at+"u")),
		clientv3.OpPut(at+"b", encode(base{next.Txns, next.Condemned})),
	}
	if next.Condemned {
		ops = append(ops, clientv3.OpPut(at+"c", condemned(epoch)))
	} else {
		ops = append(ops, clientv3.OpDelete(at+"c"))
	}
	return r.change(ctx, "swap", epoch, []publish.Record{old}, ops)
}

// Delete drops the records that are still as they were read.
func (r *Refs) Delete(ctx context.Context, epoch string, read ...publish.Record) (changed []string, err error) {
	if err := publish.CheckKeys(publish.KeysOf(read)); err != nil {
		return nil, err
	}
	return changeMany(read, func(part []publish.Record) error {
		var ops []clientv3.Op
		for _, old := range part {
			ops = append(ops, clientv3.OpDelete(r.record(old.Key), clientv3.WithPrefix()))
		}
		return r.change(ctx, "delete", epoch, part, ops)
	})
}

// change does ops if all records are as they were read.
func (r *Refs) change(ctx context.Context, op, epoch string, read []publish.Record, ops []clientv3.Op) error {
	cmps := []clientv3.Cmp{r.inEpoch(epoch)}
	for _, old := range read {
		at := r.record(old.Key)
		if old.Version == "" {
			// Revision 0 for the whole prefix: the object has no key at all.
			cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(at), "=", 0).WithPrefix())
			continue
		}
		text, part, ok := strings.Cut(old.Version, "/")
		rev, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil {
			return fmt.Errorf("%s %q: %w: version %q", op, old.Key, publish.ErrRefsInvalid, old.Version)
		}
		// The newest key must be as it was, and no other key newer: so nothing was added, and nothing removed and
		// added again.
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(at+part), "=", rev), clientv3.Compare(clientv3.ModRevision(at), "<", rev+1).WithPrefix())
	}
	resp, err := r.txn(ctx, op, read[0].Key, cmps, ops, []clientv3.Op{clientv3.OpGet(r.epochID())})
	if err != nil || resp.Succeeded {
		return err
	}
	if id := resp.Responses[0].GetResponseRange().Kvs; len(id) == 0 || string(id[0].Value) != epoch {
		return fmt.Errorf("%s %q: %w", op, read[0].Key, publish.ErrEpochMismatch)
	}
	return fmt.Errorf("%s %q: %w", op, read[0].Key, publish.ErrChanged)
}

// listPage is how many keys of etcd one request of a listing reads.
const listPage = 2000

// List reads records in key order.
func (r *Refs) List(ctx context.Context, after string, limit int) ([]publish.Record, string, error) {
	from, end := r.records(), clientv3.GetPrefixRangeEnd(r.records())
	if after != "" {
		// After every key of the object, since these continue with \0.
		from = r.records() + after + "\x01"
	}
	var records []publish.Record
	var of string
	var kvs []*mvccpb.KeyValue
	flush := func() error {
		if len(kvs) == 0 {
			return nil
		}
		rec, err := r.parse(of, kvs)
		records, kvs = append(records, rec), nil
		return err
	}
	for {
		resp, err := r.txn(ctx, "list", after, nil, []clientv3.Op{clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(listPage))}, nil)
		if err != nil {
			return nil, "", err
		}
		page := resp.Responses[0].GetResponseRange()
		for _, kv := range page.Kvs {
			key, _, ok := strings.Cut(strings.TrimPrefix(string(kv.Key), r.records()), "\x00")
			if !ok {
				return nil, "", fmt.Errorf("list: %w: key %q", publish.ErrRefsInvalid, kv.Key)
			}
			if key != of {
				if err := flush(); err != nil {
					return nil, "", err
				}
				// The key that was read belongs to the next record, so there is more after this page.
				if limit > 0 && len(records) == limit {
					return records, of, nil
				}
				of = key
			}
			kvs = append(kvs, kv)
		}
		if !page.More {
			err := flush()
			return records, "", err
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}
