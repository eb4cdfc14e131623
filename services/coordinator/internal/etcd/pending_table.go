package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

// rowRecord is the value of a row; the increment is the key's mod revision.
type rowRecord struct {
	Topic    string `json:"topic"`
	Body     []byte `json:"body"`
	Created  int64  `json:"created_unix_ns"`
	Modified int64  `json:"modified_unix_ns"`
	Active   bool   `json:"active,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Attempts uint32 `json:"attempts,omitempty"`
	State    []byte `json:"state,omitempty"`
	Fence    uint64 `json:"fence,omitempty"`
}

// hold is the value of a hold, with the seconds of its lease.
type hold struct {
	Owner   string `json:"owner"`
	Seconds int64  `json:"seconds"`
}

// logRecord is the value of a log.
type logRecord struct {
	Last      uint64 `json:"last"`
	Completed int64  `json:"completed_unix_ns"`
	Fence     uint64 `json:"fence,omitempty"`
	Result    []byte `json:"result,omitempty"`
}

func (s *PendingWork) rowsPrefix() string          { return s.o.Prefix + "/rows/" }
func (s *PendingWork) holdsPrefix() string         { return s.o.Prefix + "/holds/" }
func (s *PendingWork) logsPrefix() string          { return s.o.Prefix + "/logs/" }
func (s *PendingWork) rowKey(k work.Key) string    { return s.rowsPrefix() + suffix(k) }
func (s *PendingWork) holdKey(k work.Key) string   { return s.holdsPrefix() + suffix(k) }
func (s *PendingWork) logKey(name string) string   { return s.logsPrefix() + name + "/" }
func suffix(k work.Key) string                     { return fmt.Sprintf("%s/%020d", k.Log, k.Number) }
func (s *PendingWork) at(op string, k string) call { return call{s, op, k} }
func unix(ns int64) time.Time                      { return time.Unix(0, ns).UTC() }

// below is the range of logs at and below prefix.
func below(base, prefix string) string {
	if prefix == "" {
		return base
	}
	return base + prefix + "/"
}

// known is what etcd has of one job, at one revision.
type known struct {
	row, hold, log *mvccpb.KeyValue
	cur            *work.Row // nil when absent
	held           hold      // of hold
	last           work.Log
}

func (c call) readJob(ctx context.Context, k work.Key) (known, error) {
	r, err := c.read(ctx, clientv3.OpGet(c.rowKey(k)), clientv3.OpGet(c.holdKey(k)), clientv3.OpGet(c.logKey(k.Log)))
	if err != nil {
		return known{}, err
	}
	n := known{row: first(r, 0), hold: first(r, 1), log: first(r, 2)}
	if n.hold != nil {
		if err := get(c, n.hold, &n.held); err != nil {
			return known{}, err
		}
	}
	if n.row != nil {
		row, err := c.toRow(k, n.row, n.hold != nil)
		if err != nil {
			return known{}, err
		}
		n.cur = &row
	}
	n.last, err = c.toLog(k.Log, n.log)
	return n, err
}

func (c call) toRow(k work.Key, kv *mvccpb.KeyValue, held bool) (work.Row, error) {
	var v rowRecord
	if err := get(c, kv, &v); err != nil {
		return work.Row{}, err
	}
	return work.Row{Key: k, Topic: v.Topic, Body: v.Body, Created: unix(v.Created), Modified: unix(v.Modified), Active: v.Active, Live: v.Active && held,
		Owner: v.Owner, Increment: uint64(kv.ModRevision), Attempts: v.Attempts, State: v.State, Fence: v.Fence}, nil
}

func (c call) toLog(name string, kv *mvccpb.KeyValue) (work.Log, error) {
	l := work.Log{Name: name}
	if kv == nil {
		return l, nil
	}
	var v logRecord
	if err := get(c, kv, &v); err != nil {
		return l, err
	}
	l.Last, l.Completed, l.Fence, l.Result, l.Increment = v.Last, unix(v.Completed), v.Fence, v.Result, uint64(kv.ModRevision)
	return l, nil
}

// put writes n over what is known of its job and holds it for d; 0 ends the hold. False:
// what is known has changed.
func (c call) put(ctx context.Context, was known, n work.Row, d time.Duration) (work.Row, bool, error) {
	now := c.o.Now()
	n.Modified = now
	if was.row == nil {
		n.Created = now
	}
	// The log too: a job that was completed meanwhile must not come back as a row.
	cmps := []clientv3.Cmp{unchanged(c.rowKey(n.Key), was.row), unchanged(c.logKey(n.Log), was.log)}
	ops := []clientv3.Op{clientv3.OpPut(c.rowKey(n.Key), encode(rowRecord{Topic: n.Topic, Body: n.Body, Created: n.Created.UnixNano(), Modified: now.UnixNano(),
		Active: n.Active, Owner: n.Owner, Attempts: n.Attempts, State: n.State, Fence: n.Fence}))}
	var old, lease clientv3.LeaseID
	if was.hold != nil {
		old = clientv3.LeaseID(was.hold.Lease)
	}
	want := hold{Owner: n.Owner, Seconds: seconds(d)}
	switch {
	case d == 0 && was.hold != nil:
		ops = append(ops, clientv3.OpDelete(c.holdKey(n.Key)))
	// There is no hold, and none is wanted.
	case d == 0:
	case was.hold != nil && was.held == want:
		// The same lease again: as many checkpoints as there are need one lease.
		alive, err := c.renew(ctx, old)
		if err != nil || !alive {
			return work.Row{}, false, err
		}
		cmps, old = append(cmps, unchanged(c.holdKey(n.Key), was.hold)), 0
	default:
		var err error
		if lease, err = c.grant(ctx, d); err != nil {
			return work.Row{}, false, err
		}
		// The hold's key goes with the lease; the row stays, and shows that its owner is no longer alive.
		ops = append(ops, clientv3.OpPut(c.holdKey(n.Key), encode(want), clientv3.WithLease(lease)))
	}
	r, ok, err := c.write(ctx, cmps, ops...)
	if err != nil {
		return work.Row{}, false, err
	}
	if !ok {
		c.drop(ctx, lease)
		return work.Row{}, false, nil
	}
	// Only now: a hold that ended before the write would have let another owner claim the row.
	c.drop(ctx, old)
	// The transaction's revision is the row's mod revision, so the caller need not read it back.
	n.Increment = uint64(r.Header.Revision)
	n.Live = n.Active && d > 0
	return n, true, nil
}

// change reads a job, lets decide make its next row, and writes that. When another writer was faster it begins again.
func (c call) change(ctx context.Context, k work.Key, d time.Duration, decide func(known) (work.Row, error)) (work.Row, error) {
	for range moves {
		was, err := c.readJob(ctx, k)
		if err != nil {
			return work.Row{}, err
		}
		n, err := decide(was)
		if err != nil {
			return work.Row{}, err
		}
		n, ok, err := c.put(ctx, was, n, d)
		if err != nil || ok {
			return n, err
		}
	}
	return work.Row{}, c.busy()
}

// busy: others changed the same keys again and again.
func (c call) busy() error {
	return c.fail(fmt.Errorf("%w: changed by others %d times", work.ErrUnavailable, moves))
}

// Create implements work.Table.
func (s *PendingWork) Create(ctx context.Context, r work.Row, c *work.Claim) (work.Row, error) {
	if err := work.CheckCreate(r, c); err != nil {
		return work.Row{}, err
	}
	var d time.Duration
	if c != nil {
		d = c.Hold
	}
	return s.at("create", r.Key.String()).change(ctx, r.Key, d, func(was known) (work.Row, error) { return work.DecideCreate(was.cur, was.last, r, c) })
}

// Get implements work.Table.
func (s *PendingWork) Get(ctx context.Context, k work.Key) (work.Row, error) {
	if err := work.CheckKey("get", k); err != nil {
		return work.Row{}, err
	}
	c := s.at("get", k.String())
	was, err := c.readJob(ctx, k)
	if err != nil {
		return work.Row{}, err
	}
	if was.cur == nil {
		return work.Row{}, c.fail(work.ErrNotFound)
	}
	return *was.cur, nil
}

// Claim implements work.Table.
func (s *PendingWork) Claim(ctx context.Context, r work.Row, c work.Claim) (work.Row, error) {
	if err := work.CheckClaim("claim", r.Key, c); err != nil {
		return work.Row{}, err
	}
	return s.at("claim", r.Key.String()).change(ctx, r.Key, c.Hold, func(was known) (work.Row, error) {
		return work.DecideClaim(was.cur, was.hold != nil, r, c)
	})
}

// Checkpoint implements work.Table.
func (s *PendingWork) Checkpoint(ctx context.Context, r work.Row, state []byte, d time.Duration) (work.Row, error) {
	if err := work.CheckCheckpoint(r.Key, state, d); err != nil {
		return work.Row{}, err
	}
	return s.at("checkpoint", r.Key.String()).change(ctx, r.Key, d, func(was known) (work.Row, error) { return work.DecideCheckpoint(was.cur, r, state) })
}

// Release implements work.Table.
func (s *PendingWork) Release(ctx context.Context, r work.Row, handOver bool) (work.Row, error) {
	if err := work.CheckKey("release", r.Key); err != nil {
		return work.Row{}, err
	}
	return s.at("release", r.Key.String()).change(ctx, r.Key, 0, func(was known) (work.Row, error) { return work.DecideRelease(was.cur, r, handOver) })
}

// Touch implements work.Table.
func (s *PendingWork) Touch(ctx context.Context, r work.Row) (work.Row, error) {
	if err := work.CheckKey("touch", r.Key); err != nil {
		return work.Row{}, err
	}
	return s.at("touch", r.Key.String()).change(ctx, r.Key, 0, func(was known) (work.Row, error) { return work.DecideTouch(was.cur, was.hold != nil, r) })
}

// Done implements work.Table.
func (s *PendingWork) Done(ctx context.Context, r work.Row) error {
	if err := work.CheckKey("done", r.Key); err != nil {
		return err
	}
	c := s.at("done", r.Key.String())
	for range moves {
		was, err := c.readJob(ctx, r.Key)
		if err != nil {
			return err
		}
		l, err := work.DecideDone(was.cur, was.last, r)
		if err != nil {
			return err
		}
		_, ok, err := c.write(ctx, []clientv3.Cmp{unchanged(c.rowKey(r.Key), was.row), unchanged(c.logKey(r.Log), was.log)},
			clientv3.OpDelete(c.rowKey(r.Key)), clientv3.OpDelete(c.holdKey(r.Key)),
			clientv3.OpPut(c.logKey(r.Log), encode(logRecord{Last: l.Last, Completed: c.o.Now().UnixNano(), Fence: l.Fence, Result: l.Result})))
		if err != nil {
			return err
		}
		if ok {
			if was.hold != nil {
				c.drop(ctx, clientv3.LeaseID(was.hold.Lease))
			}
			return nil
		}
	}
	return c.busy()
}

// page reads a range of keys from base+after on; next is what comes after base in the last key.
func (c call) page(ctx context.Context, base, prefix, after string, limit int) (kvs []*mvccpb.KeyValue, next string, err error) {
	from := below(base, prefix)
	end := clientv3.GetPrefixRangeEnd(from)
	if after != "" {
		if from = max(from, base+after+"\x00"); from >= end {
			return nil, "", nil
		}
	}
	r, err := c.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(int64(limit))))
	if err != nil {
		return nil, "", err
	}
	res := r.Responses[0].GetResponseRange()
	if res.More && len(res.Kvs) > 0 {
		next = strings.TrimPrefix(string(res.Kvs[len(res.Kvs)-1].Key), base)
	}
	return res.Kvs, next, nil
}

// Rows implements work.Table.
func (s *PendingWork) Rows(ctx context.Context, prefix, after string, limit int) ([]work.Row, string, error) {
	if err := work.CheckRows("rows", prefix, after, limit); err != nil {
		return nil, "", err
	}
	c := s.at("rows", prefix)
	kvs, next, err := c.page(ctx, s.rowsPrefix(), prefix, after, limit)
	if err != nil || len(kvs) == 0 {
		return nil, "", err
	}
	// The holds of the same keys, a moment later: a row that changes meanwhile is listed as one or the other.
	cut := len(s.rowsPrefix())
	lo, hi := s.holdsPrefix()+string(kvs[0].Key[cut:]), s.holdsPrefix()+string(kvs[len(kvs)-1].Key[cut:])+"\x00"
	r, err := c.read(ctx, clientv3.OpGet(lo, clientv3.WithRange(hi), clientv3.WithKeysOnly()))
	if err != nil {
		return nil, "", err
	}
	held := map[string]bool{}
	for _, kv := range r.Responses[0].GetResponseRange().Kvs {
		held[strings.TrimPrefix(string(kv.Key), s.holdsPrefix())] = true
	}
	rows := make([]work.Row, 0, len(kvs))
	for _, kv := range kvs {
		name := string(kv.Key[cut:])
		k, err := parse(name)
		if err != nil {
			return nil, "", c.fail(fmt.Errorf("%w: etcd key %s: %w", work.ErrUnavailable, kv.Key, err))
		}
		row, err := c.toRow(k, kv, held[name])
		if err != nil {
			return nil, "", err
		}
		rows = append(rows, row)
	}
	return rows, next, nil
}

func parse(name string) (work.Key, error) {
	// The name of a log may contain slashes, its number does not.
	i := strings.LastIndexByte(name, '/')
	if i < 0 {
		return work.Key{}, errors.New("no number")
	}
	n, err := strconv.ParseUint(name[i+1:], 10, 64)
	return work.Key{Log: name[:i], Number: n}, err
}

// Log implements work.Table.
func (s *PendingWork) Log(ctx context.Context, name string) (work.Log, error) {
	if err := work.CheckLog("log", name); err != nil {
		return work.Log{}, err
	}
	c := s.at("log", name)
	r, err := c.read(ctx, clientv3.OpGet(s.logKey(name)))
	if err != nil {
		return work.Log{}, err
	}
	return c.toLog(name, first(r, 0))
}

// Logs implements work.Table.
func (s *PendingWork) Logs(ctx context.Context, prefix, after string, limit int) ([]work.Log, string, error) {
	if err := work.CheckRows("logs", prefix, after, limit); err != nil {
		return nil, "", err
	}
	c := s.at("logs", prefix)
	kvs, next, err := c.page(ctx, s.logsPrefix(), prefix, after, limit)
	if err != nil {
		return nil, "", err
	}
	var logs []work.Log
	for _, kv := range kvs {
		l, err := c.toLog(strings.TrimSuffix(strings.TrimPrefix(string(kv.Key), s.logsPrefix()), "/"), kv)
		if err != nil {
			return nil, "", err
		}
		logs = append(logs, l)
	}
	return logs, next, nil
}

// Forget implements work.Table.
func (s *PendingWork) Forget(ctx context.Context, l work.Log) error {
	if err := work.CheckLog("forget", l.Name); err != nil {
		return err
	}
	c := s.at("forget", l.Name)
	if err := ctx.Err(); err != nil {
		return c.lost(err, false)
	}
	// No stored log has revision 0, but the comparison below would hold for a key that is absent.
	if l.Increment == 0 {
		return c.fail(work.ErrMoved)
	}
	_, ok, err := c.write(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.logKey(l.Name)), "=", int64(l.Increment))}, clientv3.OpDelete(s.logKey(l.Name)))
	if err == nil && !ok {
		err = c.fail(work.ErrMoved)
	}
	return err
}
