package ledger

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/scan"
)

// Message says that a body needs a look. There is one per body: what the body needs is found when
// the message is taken, so a second reason adds nothing to the first.
type Message struct {
	Body string
	// Reason is why it was sent first, for people.
	Reason string
	// Attempts counts how often it was taken.
	Attempts int
	// First is when the body began to wait, and Due when the message is given out next; Unix nanoseconds.
	First, Due int64
	// Error is why the last attempt did not finish.
	Error string
	// Receipt is another one each time the message is given out; only who has the last one ends it. Sent counts how often the
	// body was queued, so that what is sent during an attempt is not lost with its end.
	Receipt, Sent uint64
	// Held: a worker has it.
	Held bool
}

// Backoff says how long a message waits after an attempt that failed.
type Backoff struct {
	Base, Max time.Duration
	// Attempts is how many a message has before it becomes a dead letter.
	Attempts int
}

// DefaultBackoff gives up after some four hours.
var DefaultBackoff = Backoff{Base: time.Second, Max: 10 * time.Minute, Attempts: 32}

// Wait is how long after the n-th attempt the next one is, from 1 on.
func (b Backoff) Wait(n int) time.Duration {
	d := b.Base
	for range n - 1 {
		if d *= 2; d >= b.Max {
			return b.Max
		}
	}
	return min(d, b.Max)
}

const maxReason = 100

func (m Message) encode() []byte {
	b := []byte{rowVersion}
	for _, v := range [...]uint64{uint64(m.Attempts), uint64(m.First), uint64(m.Due), m.Receipt, m.Sent} {
		b = binary.AppendUvarint(b, v)
	}
	held := byte(0)
	if m.Held {
		held = 1
	}
	b = appendText(append(b, held), m.Reason[:min(len(m.Reason), maxReason)])
	return appendText(b, m.Error[:min(len(m.Error), maxError)])
}

func decodeMessage(body []byte, v []byte) (Message, error) {
	m := Message{Body: hex.EncodeToString(body)}
	if len(v) < 1 || v[0] != rowVersion || len(body) != 16 {
		return m, fmt.Errorf("%w: message of %s", ErrCorrupt, m.Body)
	}
	s := scan.New(v[1:])
	m.Attempts, m.First, m.Due, m.Receipt, m.Sent = int(s.Num()), int64(s.Num()), int64(s.Num()), s.Num(), s.Num()
	m.Held = s.Num() == 1
	m.Reason, m.Error = s.Text(), s.Text()
	if s.Bad {
		return m, fmt.Errorf("%w: message of %s", ErrCorrupt, m.Body)
	}
	return m, nil
}

func dueKey(m Message) ([]byte, error) {
	return appendBody(binary.BigEndian.AppendUint64([]byte{spaceDue}, uint64(m.Due)), m.Body)
}

// message reads the message of a body; false when there is none.
func (l *Ledger) message(body string) (m Message, ok bool, err error) {
	key, err := appendBody([]byte{spaceMessage}, body)
	if err != nil {
		return m, false, err
	}
	var due []byte
	if ok, err = l.db.get(key, func(v []byte) error {
		due = append(append([]byte{spaceDue}, v...), key[1:]...)
		return nil
	}); err != nil || !ok {
		return m, false, err
	}
	ok, err = l.db.get(due, func(v []byte) (err error) {
		m, err = decodeMessage(key[1:], v)
		return err
	})
	return m, ok, err
}

// post writes a message in the place of the one before.
func (c *change) post(before *Message, m Message) error {
	if before != nil {
		if err := c.unpost(*before); err != nil {
			return err
		}
	}
	due, err := dueKey(m)
	if err != nil {
		return err
	}
	key, _ := appendBody([]byte{spaceMessage}, m.Body) // dueKey has checked the id
	c.queued++
	return errors.Join(c.set(due, m.encode()), c.set(key, binary.BigEndian.AppendUint64(nil, uint64(m.Due))))
}

func (c *change) unpost(m Message) error {
	due, err := dueKey(m)
	if err != nil {
		return err
	}
	key, _ := appendBody([]byte{spaceMessage}, m.Body)
	c.queued--
	return errors.Join(c.del(due), c.del(key))
}

// Send queues a body. If it waits already the earlier due time counts, and its attempts stay. A body among the dead
// letters is not queued: that is for an operator, by Redrive.
func (l *Ledger) Send(body, reason string, due time.Time) error {
	err := l.update(func(c *change) error {
		if dead, err := l.isDead(body); err != nil || dead {
			return err
		}
		m, ok, err := l.message(body)
		if err != nil {
			return err
		}
		if !ok {
			return c.post(nil, Message{Body: body, Reason: reason, First: due.UnixNano(), Due: due.UnixNano()})
		}
		next := m
		next.Sent++
		if m.Attempts == 0 {
			next.Due = min(m.Due, due.UnixNano())
		}
		return c.post(&m, next)
	})
	if err != nil {
		return fmt.Errorf("queue body %s: %w", body, err)
	}
	return nil
}

func (l *Ledger) isDead(body string) (bool, error) {
	key, err := appendBody([]byte{spaceDead}, body)
	if err != nil {
		return false, err
	}
	return l.db.get(key, func([]byte) error { return nil })
}

// Take gives the message that is due first, and hides it for a lease; false when none is due. A message that is not
// ended by then is given out again, also when its worker still has it.
func (l *Ledger) Take(now time.Time, lease time.Duration) (m Message, ok bool, err error) {
	err = l.update(func(c *change) error {
		found, err := l.first(now)
		if err != nil || found == nil {
			return err
		}
		m, ok = *found, true
		m.Attempts++
		m.Receipt, m.Held = c.next(), true
		m.Due = now.Add(lease).UnixNano()
		return c.post(found, m)
	})
	if err != nil {
		return Message{}, false, fmt.Errorf("take a message: %w", err)
	}
	return m, ok, nil
}

func (l *Ledger) first(now time.Time) (found *Message, err error) {
	prefix := []byte{spaceDue}
	err = l.db.scan(prefix, prefix, func(key, value []byte) error {
		m, err := decodeMessage(key[9:], value)
		if err != nil {
			return err
		}
		if m.Due <= now.UnixNano() {
			found = &m
		}
		return errStop
	})
	return found, err
}

// Done ends a message. If the body was queued again during the attempt it stays, and is due at once; if the message was given
// to another worker meanwhile, that one ends it.
func (l *Ledger) Done(m Message, now time.Time) error {
	return l.end(m, func(c *change, have Message) error {
		if have.Sent == m.Sent {
			return c.unpost(have)
		}
		next := have
		next.Attempts, next.Due, next.Error, next.Held = 0, now.UnixNano(), "", false
		return c.post(&have, next)
	})
}

// Later gives a message back after an attempt that failed. After the last attempt it becomes a dead letter, unless the body
// was queued again during it: what is new then may be what was missing, so the next attempt is the first again.
func (l *Ledger) Later(m Message, now time.Time, cause error, b Backoff) (dead bool, err error) {
	err = l.end(m, func(c *change, have Message) error {
		next := have
		next.Error, next.Held = cause.Error(), false
		if have.Attempts >= b.Attempts && have.Sent == m.Sent {
			dead = true
			return c.bury(have, next)
		}
		next.Due = now.Add(b.Wait(have.Attempts)).UnixNano()
		if have.Sent != m.Sent {
			next.Attempts, next.Due = 0, now.Add(b.Wait(1)).UnixNano()
		}
		return c.post(&have, next)
	})
	return dead, err
}

// Await gives a message back that cannot be worked on now, for a reason that is not the body's: a place is away. The attempt
// does not count. If the body was queued again during the attempt it is due at once: that may be what is waited for.
func (l *Ledger) Await(m Message, now, until time.Time, cause error) error {
	return l.end(m, func(c *change, have Message) error {
		if have.Sent != m.Sent {
			until = now
		}
		next := have
		next.Attempts, next.Due, next.Error, next.Held = 0, until.UnixNano(), cause.Error(), false
		return c.post(&have, next)
	})
}

func (l *Ledger) end(m Message, fn func(*change, Message) error) error {
	err := l.update(func(c *change) error {
		have, ok, err := l.message(m.Body)
		if err != nil || !ok || have.Receipt != m.Receipt {
			return err
		}
		return fn(c, have)
	})
	if err != nil {
		return fmt.Errorf("give back the message of %s: %w", m.Body, err)
	}
	return nil
}

func (c *change) bury(have, dead Message) error {
	key, err := appendBody([]byte{spaceDead}, have.Body)
	if err != nil {
		return err
	}
	c.dead++
	return errors.Join(c.unpost(have), c.set(key, dead.encode()))
}

// Dead gives up to limit dead letters behind a body; the empty id is before all.
func (l *Ledger) Dead(behind string, limit int) ([]Message, error) {
	return l.messages([]byte{spaceDead}, behind, limit, func(key, value []byte) (Message, error) { return decodeMessage(key[1:], value) })
}

// Queue gives up to limit messages, the first due first.
func (l *Ledger) Queue(limit int) ([]Message, error) {
	return l.messages([]byte{spaceDue}, "", limit, func(key, value []byte) (Message, error) { return decodeMessage(key[9:], value) })
}

func (l *Ledger) messages(prefix []byte, behind string, limit int, read func(key, value []byte) (Message, error)) (out []Message, err error) {
	lower := prefix
	if behind != "" {
		if lower, err = appendBody(append([]byte{}, prefix...), behind); err != nil {
			return nil, err
		}
		lower = append(lower, 0)
	}
	limit = min(max(limit, 1), page)
	err = l.db.do(func() error {
		return l.db.scan(prefix, lower, func(key, value []byte) error {
			m, err := read(key, value)
			if err != nil {
				return err
			}
			if out = append(out, m); len(out) == limit {
				return errStop
			}
			return nil
		})
	})
	return out, err
}

// Redrive queues a dead letter again, with no attempts; false when there is none of this body.
func (l *Ledger) Redrive(body string, now time.Time) (found bool, err error) {
	err = l.exhume(body, func(c *change, m Message) error {
		found = true
		if _, queued, err := l.message(body); err != nil || queued {
			return err
		}
		m.Attempts, m.Due = 0, now.UnixNano()
		return c.post(nil, m)
	})
	return found, err
}

// DropDead removes a dead letter without another attempt.
func (l *Ledger) DropDead(body string) (found bool, err error) {
	err = l.exhume(body, func(*change, Message) error {
		found = true
		return nil
	})
	return found, err
}

func (l *Ledger) exhume(body string, fn func(*change, Message) error) error {
	err := l.update(func(c *change) error {
		key, err := appendBody([]byte{spaceDead}, body)
		if err != nil {
			return err
		}
		var m Message
		ok, err := l.db.get(key, func(v []byte) (err error) {
			m, err = decodeMessage(key[1:], v)
			return err
		})
		if err != nil || !ok {
			return err
		}
		c.dead--
		return errors.Join(c.del(key), fn(c, m))
	})
	if err != nil {
		return fmt.Errorf("dead letter of %s: %w", body, err)
	}
	return nil
}

// Queued reports whether a body has a message, or is a dead letter.
func (l *Ledger) Queued(body string) (queued bool, err error) {
	err = l.db.do(func() error {
		if _, queued, err = l.message(body); err != nil || queued {
			return err
		}
		queued, err = l.isDead(body)
		return err
	})
	return queued, err
}

// Waiting gives when the body that waits longest began to; false when none waits.
func (l *Ledger) Waiting() (since time.Time, ok bool, err error) {
	oldest := int64(0)
	err = l.db.do(func() error {
		prefix, seen := []byte{spaceDue}, 0
		return l.db.scan(prefix, prefix, func(key, value []byte) error {
			m, err := decodeMessage(key[9:], value)
			if err != nil {
				return err
			}
			if oldest == 0 || m.First < oldest {
				oldest = m.First
			}
			// Due times follow the times of sending but for what backs off, which is little.
			if seen++; seen >= page {
				return errStop
			}
			return nil
		})
	})
	return time.Unix(0, oldest), oldest != 0, err
}
