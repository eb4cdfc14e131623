package etcd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// message is the value of a message and of a dead letter.
type message struct {
	Body   []byte `json:"body"`
	Tries  int    `json:"tries,omitempty"`
	Dedupe string `json:"dedupe,omitempty"` // until the first delivery
	Reason string `json:"reason,omitempty"`
	Buried int64  `json:"buried_unix_ns,omitempty"`
}

// hidden is the value of the key that hides a message.
type hidden struct {
	Receipt string `json:"receipt,omitempty"` // empty: delayed, nobody's
	Seconds int64  `json:"seconds"`
}

func (s *PendingWork) topic(topic string) string       { return s.o.Prefix + "/queue/" + topic + "/" }
func (s *PendingWork) messages(topic string) string    { return s.topic(topic) + "m/" }
func (s *PendingWork) hides(topic string) string       { return s.topic(topic) + "h/" }
func (s *PendingWork) dead(topic string) string        { return s.topic(topic) + "d/" }
func (s *PendingWork) dedupe(topic, key string) string { return s.topic(topic) + "u/" + key }
func count(prefix string) clientv3.Op {
	return clientv3.OpGet(prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
}
func counted(r *clientv3.TxnResponse, i int) int         { return int(r.Responses[i].GetResponseRange().Count) }
func (s *PendingWork) messageKey(t, id string) string    { return s.messages(t) + id }
func (s *PendingWork) hideKey(topic, id string) string   { return s.hides(topic) + id }
func (s *PendingWork) letterKey(topic, id string) string { return s.dead(topic) + id }

// Send implements work.Queue. The id begins with a revision, so that messages are read in
// the order of sending without a clock.
func (s *PendingWork) Send(ctx context.Context, topic string, body []byte, o work.SendOptions) error {
	if err := work.CheckSend(topic, body, o); err != nil {
		return err
	}
	c := s.at("send", topic)
	r, err := c.read(ctx, count(s.messages(topic)))
	if err != nil {
		return err
	}
	if counted(r, 0) >= work.MaxMessages {
		return c.fail(work.ErrFull)
	}
	// Several senders may read the same revision, so the random part keeps their ids apart.
	id := fmt.Sprintf("%020d-%s", r.Header.Revision, run.RandomID())
	cmps := []clientv3.Cmp{unchanged(s.messageKey(topic, id), nil)}
	ops := []clientv3.Op{clientv3.OpPut(s.messageKey(topic, id), encode(message{Body: body, Dedupe: o.DedupeKey}))}
	if o.DedupeKey != "" {
		// The comparison fails while a message with the same key waits for its first delivery; then nothing is
		// written.
		key := s.dedupe(topic, o.DedupeKey)
		cmps, ops = append(cmps, unchanged(key, nil)), append(ops, clientv3.OpPut(key, id))
	}
	var lease clientv3.LeaseID
	if o.Delay > 0 {
		if lease, err = c.grant(ctx, o.Delay); err != nil {
			return err
		}
		// The lease ends the delay: when etcd drops the key, the message is visible, and nobody has to act.
		ops = append(ops, clientv3.OpPut(s.hideKey(topic, id), encode(hidden{Seconds: seconds(o.Delay)}), clientv3.WithLease(lease)))
	}
	_, ok, err := c.write(ctx, cmps, ops...)
	if err == nil && !ok {
		c.drop(ctx, lease) // the dedupe key is taken: dropped
	}
	return err
}

// scan is how many messages a Receive checks in one read.
const scan = 128

// Receive implements work.Queue.
func (s *PendingWork) Receive(ctx context.Context, topic string, n int, visibility time.Duration) ([]work.Message, error) {
	if err := work.CheckReceive(topic, n, visibility); err != nil {
		return nil, err
	}
	c := s.at("receive", topic)
	var got []work.Message
	from, end := s.messages(topic), clientv3.GetPrefixRangeEnd(s.messages(topic))
	for len(got) < n {
		r, err := c.read(ctx, clientv3.OpGet(from, clientv3.WithRange(end), clientv3.WithLimit(scan), clientv3.WithKeysOnly()))
		if err != nil {
			return partial(got, err)
		}
		page := r.Responses[0].GetResponseRange()
		ids := make([]string, len(page.Kvs))
		for i, kv := range page.Kvs {
			ids[i] = strings.TrimPrefix(string(kv.Key), s.messages(topic))
		}
		if len(ids) == 0 {
			break
		}
		// One range read finds what is hidden on the whole page. It may be out of date by the time a message is
		// delivered, so deliver compares again.
		r, err = c.read(ctx, clientv3.OpGet(s.hideKey(topic, ids[0]), clientv3.WithRange(s.hideKey(topic, ids[len(ids)-1])+"\x00"), clientv3.WithKeysOnly()))
		if err != nil {
			return partial(got, err)
		}
		hid := map[string]bool{}
		for _, kv := range r.Responses[0].GetResponseRange().Kvs {
			hid[strings.TrimPrefix(string(kv.Key), s.hides(topic))] = true
		}
		for _, id := range ids {
			if hid[id] || len(got) == n {
				continue
			}
			m, ok, err := c.deliver(ctx, topic, id, visibility)
			if err != nil {
				return partial(got, err)
			}
			if ok {
				got = append(got, m)
			}
		}
		if !page.More {
			break
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
	return got, nil
}

// partial returns what was received before an error: an error would leave these
// messages hidden although nobody works on them.
func partial(got []work.Message, err error) ([]work.Message, error) {
	if len(got) > 0 {
		return got, nil
	}
	return nil, err
}

// deliver hides one message; false when another was faster, or it is dead now.
func (c call) deliver(ctx context.Context, topic, id string, visibility time.Duration) (work.Message, bool, error) {
	r, err := c.read(ctx, clientv3.OpGet(c.messageKey(topic, id)), clientv3.OpGet(c.hideKey(topic, id)))
	if err != nil {
		return work.Message{}, false, err
	}
	kv := first(r, 0)
	// Another receiver was faster since the page was read.
	if kv == nil || first(r, 1) != nil {
		return work.Message{}, false, nil
	}
	var m message
	if err := get(c, kv, &m); err != nil {
		return work.Message{}, false, err
	}
	cmps := []clientv3.Cmp{unchanged(c.messageKey(topic, id), kv), unchanged(c.hideKey(topic, id), nil)}
	if m.Tries >= c.o.MaxTries {
		// Nobody has completed it in so many deliveries, so it probably makes whoever receives it fail.
		m.Reason = fmt.Sprintf("delivered %d times", m.Tries)
		ops, err := c.bury(ctx, topic, id, m)
		if err == nil {
			_, _, err = c.write(ctx, cmps, ops...)
		}
		return work.Message{}, false, err
	}
	lease, err := c.grant(ctx, visibility)
	if err != nil {
		return work.Message{}, false, err
	}
	var ops []clientv3.Op
	if m.Dedupe != "" {
		// Once the work may have begun, another message with the same key is news and must not be dropped.
		ops = append(ops, clientv3.OpDelete(c.dedupe(topic, m.Dedupe)))
	}
	m.Tries++
	m.Dedupe = ""
	// etcd never gives a lease id twice, so a receipt belongs to one delivery.
	receipt := fmt.Sprintf("%016x", uint64(lease))
	ops = append(ops, clientv3.OpPut(c.messageKey(topic, id), encode(m)),
		clientv3.OpPut(c.hideKey(topic, id), encode(hidden{Receipt: receipt, Seconds: seconds(visibility)}), clientv3.WithLease(lease)))
	_, ok, err := c.write(ctx, cmps, ops...)
	if err != nil || !ok {
		c.drop(ctx, lease) // also of an unknown outcome: then it is visible at once
		return work.Message{}, false, err
	}
	return work.Message{ID: id, Topic: topic, Body: m.Body, Tries: m.Tries, Receipt: receipt}, true, nil
}

// bury is what makes a message a dead letter, in the place of the oldest when there are too many.
func (c call) bury(ctx context.Context, topic, id string, m message) ([]clientv3.Op, error) {
	r, err := c.read(ctx, count(c.dead(topic)), clientv3.OpGet(c.dead(topic), clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly()))
	if err != nil {
		return nil, err
	}
	m.Buried, m.Dedupe = c.o.Now().UnixNano(), ""
	ops := []clientv3.Op{clientv3.OpDelete(c.messageKey(topic, id)), clientv3.OpDelete(c.hideKey(topic, id)), clientv3.OpPut(c.letterKey(topic, id), encode(m))}
	if oldest := first(r, 1); oldest != nil && counted(r, 0) >= c.o.MaxDead {
		ops = append(ops, clientv3.OpDelete(string(oldest.Key)))
	}
	return ops, nil
}

// delivered is a delivery that is still the caller's.
type delivered struct {
	message, hide *mvccpb.KeyValue
	m             message
	h             hidden
}

func (d delivered) lease() clientv3.LeaseID { return clientv3.LeaseID(d.hide.Lease) }

// readDelivery reads a delivery; ErrGone when it is no longer the caller's.
func (c call) readDelivery(ctx context.Context, m work.Message) (delivered, error) {
	r, err := c.read(ctx, clientv3.OpGet(c.messageKey(m.Topic, m.ID)), clientv3.OpGet(c.hideKey(m.Topic, m.ID)))
	if err != nil {
		return delivered{}, err
	}
	d := delivered{message: first(r, 0), hide: first(r, 1)}
	if d.message == nil || d.hide == nil {
		return d, c.fail(work.ErrGone)
	}
	if err := get(c, d.hide, &d.h); err != nil {
		return d, err
	}
	// The message was delivered again after this delivery's lease had ended; it belongs to the other receiver now.
	if d.h.Receipt != m.Receipt {
		return d, c.fail(work.ErrGone)
	}
	return d, get(c, d.message, &d.m)
}

// endDelivery ends a delivery by ops; ErrGone when it is no longer the caller's.
func (c call) endDelivery(ctx context.Context, m work.Message, d delivered, ops ...clientv3.Op) error {
	_, ok, err := c.write(ctx, []clientv3.Cmp{unchanged(c.messageKey(m.Topic, m.ID), d.message), unchanged(c.hideKey(m.Topic, m.ID), d.hide)}, ops...)
	if err != nil {
		return err
	}
	if !ok {
		return c.fail(work.ErrGone)
	}
	c.drop(ctx, d.lease())
	return nil
}

// hide is the operation that hides m by a new lease.
func (c call) hide(ctx context.Context, m work.Message, receipt string, d time.Duration) (clientv3.Op, error) {
	lease, err := c.grant(ctx, d)
	return clientv3.OpPut(c.hideKey(m.Topic, m.ID), encode(hidden{Receipt: receipt, Seconds: seconds(d)}), clientv3.WithLease(lease)), err
}

// Extend implements work.Queue.
func (s *PendingWork) Extend(ctx context.Context, m work.Message, d time.Duration) error {
	if err := work.CheckExtend(m, d); err != nil {
		return err
	}
	c := s.at("extend", m.Key())
	del, err := c.readDelivery(ctx, m)
	if err != nil {
		return err
	}
	// The same duration needs no write: to renew the lease is cheaper, and makes no new revision.
	if del.h.Seconds == seconds(d) {
		alive, err := c.renew(ctx, del.lease())
		if err == nil && !alive {
			err = c.fail(work.ErrGone)
		}
		return err
	}
	op, err := c.hide(ctx, m, m.Receipt, d)
	if err != nil {
		return err
	}
	return c.endDelivery(ctx, m, del, op)
}

// Terminate implements work.Queue.
func (s *PendingWork) Terminate(ctx context.Context, m work.Message) error {
	if err := work.CheckDelivery("terminate", m); err != nil {
		return err
	}
	c := s.at("terminate", m.Key())
	del, err := c.readDelivery(ctx, m)
	if err != nil {
		return err
	}
	return c.endDelivery(ctx, m, del, clientv3.OpDelete(s.hideKey(m.Topic, m.ID)))
}

// Defer implements work.Queue.
func (s *PendingWork) Defer(ctx context.Context, m work.Message, delay time.Duration) error {
	if err := work.CheckDefer(m, delay); err != nil {
		return err
	}
	c := s.at("defer", m.Key())
	del, err := c.readDelivery(ctx, m)
	if err != nil {
		return err
	}
	op := clientv3.OpDelete(s.hideKey(m.Topic, m.ID))
	if delay > 0 {
		if op, err = c.hide(ctx, m, "", delay); err != nil {
			return err
		}
	}
	// The receiver says that the work is not due, so the delivery was no failed attempt.
	del.m.Tries = 0
	return c.endDelivery(ctx, m, del, op, clientv3.OpPut(s.messageKey(m.Topic, m.ID), encode(del.m)))
}

// Delete implements work.Queue.
func (s *PendingWork) Delete(ctx context.Context, m work.Message) error {
	if err := work.CheckDelivery("delete", m); err != nil {
		return err
	}
	c := s.at("delete", m.Key())
	// The lease of whoever has the message now. The message is deleted without comparing: the work is done, whoever
	// it was delivered to meanwhile.
	r, err := c.read(ctx, clientv3.OpGet(s.hideKey(m.Topic, m.ID)))
	if err != nil {
		return err
	}
	if _, _, err := c.write(ctx, nil, clientv3.OpDelete(s.messageKey(m.Topic, m.ID)), clientv3.OpDelete(s.hideKey(m.Topic, m.ID))); err != nil {
		return err
	}
	if kv := first(r, 0); kv != nil {
		c.drop(ctx, clientv3.LeaseID(kv.Lease))
	}
	return nil
}

// Bury implements work.Queue.
func (s *PendingWork) Bury(ctx context.Context, m work.Message, reason string) error {
	if err := work.CheckDelivery("bury", m); err != nil {
		return err
	}
	c := s.at("bury", m.Key())
	del, err := c.readDelivery(ctx, m)
	if err != nil {
		return err
	}
	del.m.Reason = work.CutReason(reason)
	ops, err := c.bury(ctx, m.Topic, m.ID, del.m)
	if err != nil {
		return err
	}
	return c.endDelivery(ctx, m, del, ops...)
}

// DeadLetters implements work.Queue.
func (s *PendingWork) DeadLetters(ctx context.Context, topic, after string, limit int) ([]work.DeadLetter, string, error) {
	if err := work.CheckDeadLetters(topic, after, limit); err != nil {
		return nil, "", err
	}
	c := s.at("dead letters", topic)
	kvs, next, err := c.page(ctx, s.dead(topic), "", after, limit)
	if err != nil {
		return nil, "", err
	}
	var ds []work.DeadLetter
	for _, kv := range kvs {
		var m message
		if err := get(c, kv, &m); err != nil {
			return nil, "", err
		}
		ds = append(ds, work.DeadLetter{ID: strings.TrimPrefix(string(kv.Key), s.dead(topic)), Topic: topic, Body: m.Body, Tries: m.Tries, Reason: m.Reason, Buried: unix(m.Buried)})
	}
	return ds, next, nil
}

// Redrive implements work.Queue.
func (s *PendingWork) Redrive(ctx context.Context, topic, id string) error {
	if err := work.CheckTopic("redrive", topic); err != nil {
		return err
	}
	c := s.at("redrive", topic+"/"+id)
	r, err := c.read(ctx, clientv3.OpGet(s.letterKey(topic, id)))
	if err != nil {
		return err
	}
	kv := first(r, 0)
	if kv == nil {
		return c.fail(work.ErrNotFound)
	}
	var m message
	if err := get(c, kv, &m); err != nil {
		return err
	}
	_, ok, err := c.write(ctx, []clientv3.Cmp{unchanged(s.letterKey(topic, id), kv)},
		clientv3.OpDelete(s.letterKey(topic, id)), clientv3.OpPut(s.messageKey(topic, id), encode(message{Body: m.Body})))
	if err == nil && !ok {
		err = c.fail(work.ErrNotFound)
	}
	return err
}

// Depth implements work.Queue.
func (s *PendingWork) Depth(ctx context.Context, topic string) (work.Depth, error) {
	if err := work.CheckTopic("depth", topic); err != nil {
		return work.Depth{}, err
	}
	r, err := s.at("depth", topic).read(ctx, count(s.messages(topic)), count(s.hides(topic)), count(s.dead(topic)))
	if err != nil {
		return work.Depth{}, err
	}
	h := counted(r, 1)
	return work.Depth{Ready: counted(r, 0) - h, Hidden: h, Dead: counted(r, 2)}, nil
}
