package ledger

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// Hasten makes messages due that wait for something that may have come: a place is back, or there is another. A worker
// that has a message may have looked before, so that message is due again when it is given back. It gives how many.
func (l *Ledger) Hasten(now time.Time) (n int, err error) {
	err = l.eachMessage(func(m Message) error {
		if m.Due <= now.UnixNano() {
			return nil
		}
		n++
		return l.update(func(c *change) error {
			have, ok, err := l.message(m.Body)
			if err != nil || !ok {
				return err
			}
			next := have
			if have.Held {
				next.Sent++
			} else {
				next.Due = min(have.Due, now.UnixNano())
			}
			return c.post(&have, next)
		})
	})
	return n, err
}

// Recall makes messages due that are to wait for longer than anything waits, and that no worker has: they were given back before
// the clock was set. It gives how many.
func (l *Ledger) Recall(now time.Time, longest time.Duration) (n int, err error) {
	latest := now.Add(longest).UnixNano()
	var late []string
	err = l.db.do(func() error {
		prefix := []byte{spaceDue}
		lower := binary.BigEndian.AppendUint64([]byte{spaceDue}, uint64(latest)+1)
		return l.db.scan(prefix, lower, func(key, value []byte) error {
			m, err := decodeMessage(key[9:], value)
			if err == nil && !m.Held {
				late = append(late, m.Body)
			}
			if err == nil && len(late) == page {
				err = errStop // the next call has the others
			}
			return err
		})
	})
	for _, body := range late {
		if err != nil {
			break
		}
		err = l.update(func(c *change) error {
			have, ok, err := l.message(body)
			if err != nil || !ok || have.Held || have.Due <= latest {
				return err
			}
			next := have
			next.Due = now.UnixNano()
			n++
			return c.post(&have, next)
		})
	}
	if err != nil {
		return n, fmt.Errorf("recall messages: %w", err)
	}
	return n, nil
}

// Recover returns what the workers of an earlier process had: their messages are due, and the steps that they had
// begun were not done. It is called before any worker.
func (l *Ledger) Recover(now time.Time) error {
	err := l.eachMessage(func(m Message) error {
		if !m.Held {
			return nil
		}
		return l.update(func(c *change) error {
			next := m
			next.Held, next.Due = false, now.UnixNano()
			return c.post(&m, next)
		})
	})
	if err != nil {
		return fmt.Errorf("return messages: %w", err)
	}
	_, err = l.ReturnStuck(now, -1)
	return err
}

// ReturnStuck takes rows from workers that have had them for longer than a lease, and queues their bodies. It gives how many.
func (l *Ledger) ReturnStuck(now time.Time, lease time.Duration) (n int, err error) {
	for _, s := range []State{Uploading, Verifying} {
		for behind := (Key{}); ; {
			rows, err := l.InState(s, behind, page)
			if err != nil {
				return n, err
			}
			for _, r := range rows {
				behind = r.Key
				if !r.Stuck(now, lease) {
					continue
				}
				if _, err := l.Apply(r, Retry, now, errStuck, nil); errors.Is(err, ErrRaced) {
					continue
				} else if err != nil {
					return n, err
				}
				n++
				if err := l.Send(r.Body, "a worker did not come back", now); err != nil {
					return n, err
				}
			}
			if len(rows) < page {
				break
			}
		}
	}
	return n, nil
}

var errStuck = errors.New("the worker did not come back")

// eachMessage calls fn for the messages that are queued, each body once, in the order of the bodies. It has one page of them in memory,
// however many wait: a lost ledger queues every body.
func (l *Ledger) eachMessage(fn func(Message) error) error {
	for behind := ""; ; {
		list, err := l.queuedBehind(behind)
		if err != nil {
			return err
		}
		for _, m := range list {
			behind = m.Body
			// As it is now: fn may take as long as it likes.
			var ok bool
			if err := l.db.do(func() (err error) {
				m, ok, err = l.message(m.Body)
				return err
			}); err != nil {
				return err
			}
			if ok {
				if err := fn(m); err != nil {
					return err
				}
			}
		}
		if len(list) < page {
			return nil
		}
	}
}

// queuedBehind gives the bodies of up to one page of messages behind a body.
func (l *Ledger) queuedBehind(behind string) ([]Message, error) {
	return l.messages([]byte{spaceMessage}, behind, page, func(key, _ []byte) (Message, error) {
		return Message{Body: hex.EncodeToString(key[1:])}, nil
	})
}
