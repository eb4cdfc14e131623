package mem

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

type topic struct {
	messages []*message // in the order of sending
	dead     []work.DeadLetter
}

type message struct {
	id        string
	body      []byte
	dedupe    string // until the first delivery
	visibleAt time.Time
	tries     int
	receipt   string // of the newest delivery that is not given back
}

// Send implements work.Queue.
func (s *Store) Send(ctx context.Context, name string, body []byte, o work.SendOptions) error {
	if err := work.CheckSend(name, body, o); err != nil {
		return err
	}
	if err := alive(ctx, "send", name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[name]
	if t == nil {
		t = &topic{}
		s.topics[name] = t
	}
	if o.DedupeKey != "" && slices.ContainsFunc(t.messages, func(m *message) bool { return m.dedupe == o.DedupeKey }) {
		return nil
	}
	if len(t.messages) >= work.MaxMessages {
		return &work.Error{Op: "send", Key: name, Err: work.ErrFull}
	}
	t.messages = append(t.messages, &message{
		id: fmt.Sprintf("%020d", s.number()), body: bytes.Clone(body), dedupe: o.DedupeKey, visibleAt: s.now().Add(o.Delay)})
	return nil
}

// Receive implements work.Queue.
func (s *Store) Receive(ctx context.Context, name string, n int, visibility time.Duration) ([]work.Message, error) {
	if err := work.CheckReceive(name, n, visibility); err != nil {
		return nil, err
	}
	if err := alive(ctx, "receive", name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, now := s.topics[name], s.now()
	var got []work.Message
	if t == nil {
		return got, nil
	}
	// A copy, since bury removes messages from the list.
	for _, m := range slices.Clone(t.messages) {
		if len(got) == n {
			break
		}
		if m.visibleAt.After(now) {
			continue
		}
		if m.tries >= s.opts.MaxTries {
			s.bury(t, m, fmt.Sprintf("delivered %d times", m.tries), now)
			continue
		}
		m.tries++
		// Once delivered, a message no longer keeps others with its key out: its work may have begun before their
		// cause.
		m.dedupe, m.visibleAt = "", now.Add(visibility)
		m.receipt = fmt.Sprintf("%s.%d", m.id, s.number())
		got = append(got, work.Message{ID: m.id, Topic: name, Body: bytes.Clone(m.body), Tries: m.tries, Receipt: m.receipt})
	}
	return got, nil
}

func (s *Store) bury(t *topic, m *message, reason string, now time.Time) {
	t.remove(m)
	t.dead = append(t.dead, work.DeadLetter{ID: m.id, Body: m.body, Tries: m.tries, Reason: work.CutReason(reason), Buried: now})
	slices.SortFunc(t.dead, func(a, b work.DeadLetter) int { return cmp.Compare(a.ID, b.ID) })
	// Sorted by id, which is the order of sending, so the oldest are dropped.
	t.dead = t.dead[max(0, len(t.dead)-s.opts.MaxDead):]
}

func (t *topic) remove(m *message) {
	t.messages = slices.DeleteFunc(t.messages, func(o *message) bool { return o == m })
}

// delivered runs fn on the message while m is its newest delivery.
func (s *Store) delivered(ctx context.Context, op string, m work.Message, fn func(*topic, *message, time.Time)) error {
	if err := alive(ctx, op, m.Key()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if t := s.topics[m.Topic]; t != nil {
		for _, o := range t.messages {
			if o.receipt == m.Receipt && o.visibleAt.After(now) {
				fn(t, o, now)
				return nil
			}
		}
	}
	return &work.Error{Op: op, Key: m.Key(), Err: work.ErrGone}
}

// Extend implements work.Queue.
func (s *Store) Extend(ctx context.Context, m work.Message, d time.Duration) error {
	if err := work.CheckExtend(m, d); err != nil {
		return err
	}
	return s.delivered(ctx, "extend", m, func(_ *topic, o *message, now time.Time) { o.visibleAt = now.Add(d) })
}

// Terminate implements work.Queue.
func (s *Store) Terminate(ctx context.Context, m work.Message) error {
	if err := work.CheckDelivery("terminate", m); err != nil {
		return err
	}
	return s.delivered(ctx, "terminate", m, func(_ *topic, o *message, now time.Time) { o.visibleAt, o.receipt = now, "" })
}

// Defer implements work.Queue.
func (s *Store) Defer(ctx context.Context, m work.Message, delay time.Duration) error {
	if err := work.CheckDefer(m, delay); err != nil {
		return err
	}
	return s.delivered(ctx, "defer", m, func(t *topic, o *message, now time.Time) {
		o.visibleAt, o.receipt, o.tries = now.Add(delay), "", 0
		t.remove(o)
		// At the end, behind what became visible earlier.
		t.messages = append(t.messages, o)
	})
}

// Delete implements work.Queue.
func (s *Store) Delete(ctx context.Context, m work.Message) error {
	if err := work.CheckDelivery("delete", m); err != nil {
		return err
	}
	if err := alive(ctx, "delete", m.Key()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[m.Topic]; t != nil {
		t.messages = slices.DeleteFunc(t.messages, func(o *message) bool { return o.id == m.ID })
		// Topics need not be created, so an empty one is dropped, or names would pile up.
		if len(t.messages)+len(t.dead) == 0 {
			delete(s.topics, m.Topic)
		}
	}
	return nil
}

// Bury implements work.Queue.
func (s *Store) Bury(ctx context.Context, m work.Message, reason string) error {
	if err := work.CheckDelivery("bury", m); err != nil {
		return err
	}
	return s.delivered(ctx, "bury", m, func(t *topic, o *message, now time.Time) { s.bury(t, o, reason, now) })
}

// DeadLetters implements work.Queue.
func (s *Store) DeadLetters(ctx context.Context, name, after string, limit int) ([]work.DeadLetter, string, error) {
	if err := work.CheckDeadLetters(name, after, limit); err != nil {
		return nil, "", err
	}
	if err := alive(ctx, "dead letters", name); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var page []work.DeadLetter
	if t := s.topics[name]; t != nil {
		for _, d := range t.dead {
			if d.ID <= after {
				continue
			}
			if len(page) == limit {
				return page, page[limit-1].ID, nil
			}
			d.Topic, d.Body = name, bytes.Clone(d.Body)
			page = append(page, d)
		}
	}
	return page, "", nil
}

// Redrive implements work.Queue.
func (s *Store) Redrive(ctx context.Context, name, id string) error {
	if err := work.CheckTopic("redrive", name); err != nil {
		return err
	}
	if err := alive(ctx, "redrive", name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[name]; t != nil {
		for i, d := range t.dead {
			if d.ID == id {
				t.dead = slices.Delete(t.dead, i, i+1)
				t.messages = append(t.messages, &message{id: d.ID, body: d.Body, visibleAt: s.now()})
				return nil
			}
		}
	}
	return &work.Error{Op: "redrive", Key: name + "/" + id, Err: work.ErrNotFound}
}

// Depth implements work.Queue.
func (s *Store) Depth(ctx context.Context, name string) (work.Depth, error) {
	if err := work.CheckTopic("depth", name); err != nil {
		return work.Depth{}, err
	}
	if err := alive(ctx, "depth", name); err != nil {
		return work.Depth{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var d work.Depth
	if t := s.topics[name]; t != nil {
		now := s.now()
		for _, m := range t.messages {
			if m.visibleAt.After(now) {
				d.Hidden++
			} else {
				d.Ready++
			}
		}
		d.Dead = len(t.dead)
	}
	return d, nil
}
