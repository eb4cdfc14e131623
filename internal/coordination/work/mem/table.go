package mem

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work"
)

type row struct {
	work.Row
	until time.Time // end of the hold
}

func (r *row) live(now time.Time) bool { return r.Active && r.until.After(now) }

func (r *row) read(now time.Time) work.Row {
	c := r.Row
	c.Live = r.live(now)
	c.Body, c.State = bytes.Clone(c.Body), bytes.Clone(c.State)
	return c
}

// Create implements work.Table.
func (s *Store) Create(ctx context.Context, r work.Row, c *work.Claim) (work.Row, error) {
	if err := work.CheckCreate(r, c); err != nil {
		return work.Row{}, err
	}
	if err := alive(ctx, "create", r.Key.String()); err != nil {
		return work.Row{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var cur *work.Row
	if old := s.rows[r.Key]; old != nil {
		cur = &old.Row
	}
	n, err := work.DecideCreate(cur, s.logs[r.Log], r, c)
	if err != nil {
		return work.Row{}, err
	}
	// The caller may change its slices afterwards.
	n.Body, n.State = bytes.Clone(r.Body), bytes.Clone(r.State)
	n.Created = s.now()
	var hold time.Duration
	if c != nil {
		hold = c.Hold
	}
	return s.write(&row{Row: n}, hold), nil
}

// write stores n as changed now and held for hold.
func (s *Store) write(n *row, hold time.Duration) work.Row {
	now := s.now()
	n.Modified, n.until = now, now.Add(hold)
	n.Increment++
	if s.rows[n.Key] == nil {
		// Kept sorted, so that a page of rows needs no sorting of all.
		at, _ := slices.BinarySearch(s.order, token(n.Key))
		s.order = slices.Insert(s.order, at, token(n.Key))
	}
	s.rows[n.Key] = n
	return n.read(now)
}

// Get implements work.Table.
func (s *Store) Get(ctx context.Context, k work.Key) (work.Row, error) {
	if err := work.CheckKey("get", k); err != nil {
		return work.Row{}, err
	}
	if err := alive(ctx, "get", k.String()); err != nil {
		return work.Row{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.rows[k]; r != nil {
		return r.read(s.now()), nil
	}
	return work.Row{}, &work.Error{Op: "get", Key: k.String(), Err: work.ErrNotFound}
}

// change replaces the row of k by what decide makes of it, held for hold.
func (s *Store) change(ctx context.Context, op string, k work.Key, hold time.Duration, decide func(cur *work.Row, live bool) (work.Row, error)) (work.Row, error) {
	if err := alive(ctx, op, k.String()); err != nil {
		return work.Row{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var cur *work.Row
	live := false
	if old := s.rows[k]; old != nil {
		cur, live = &old.Row, old.live(s.now())
	}
	n, err := decide(cur, live)
	if err != nil {
		return work.Row{}, err
	}
	return s.write(&row{Row: n}, hold), nil
}

// Claim implements work.Table.
func (s *Store) Claim(ctx context.Context, r work.Row, c work.Claim) (work.Row, error) {
	if err := work.CheckClaim("claim", r.Key, c); err != nil {
		return work.Row{}, err
	}
	return s.change(ctx, "claim", r.Key, c.Hold, func(cur *work.Row, live bool) (work.Row, error) {
		return work.DecideClaim(cur, live, r, c)
	})
}

// Checkpoint implements work.Table.
func (s *Store) Checkpoint(ctx context.Context, r work.Row, state []byte, hold time.Duration) (work.Row, error) {
	if err := work.CheckCheckpoint(r.Key, state, hold); err != nil {
		return work.Row{}, err
	}
	return s.change(ctx, "checkpoint", r.Key, hold, func(cur *work.Row, _ bool) (work.Row, error) {
		return work.DecideCheckpoint(cur, r, bytes.Clone(state))
	})
}

// Release implements work.Table.
func (s *Store) Release(ctx context.Context, r work.Row, handOver bool) (work.Row, error) {
	if err := work.CheckKey("release", r.Key); err != nil {
		return work.Row{}, err
	}
	return s.change(ctx, "release", r.Key, 0, func(cur *work.Row, _ bool) (work.Row, error) {
		return work.DecideRelease(cur, r, handOver)
	})
}

// Touch implements work.Table.
func (s *Store) Touch(ctx context.Context, r work.Row) (work.Row, error) {
	if err := work.CheckKey("touch", r.Key); err != nil {
		return work.Row{}, err
	}
	return s.change(ctx, "touch", r.Key, 0, func(cur *work.Row, live bool) (work.Row, error) {
		return work.DecideTouch(cur, live, r)
	})
}

// Done implements work.Table.
func (s *Store) Done(ctx context.Context, r work.Row) error {
	if err := work.CheckKey("done", r.Key); err != nil {
		return err
	}
	if err := alive(ctx, "done", r.Key.String()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var cur *work.Row
	if old := s.rows[r.Key]; old != nil {
		cur = &old.Row
	}
	l, err := work.DecideDone(cur, s.logs[r.Log], r)
	if err != nil {
		return err
	}
	delete(s.rows, r.Key)
	if at, ok := slices.BinarySearch(s.order, token(r.Key)); ok {
		s.order = slices.Delete(s.order, at, at+1)
	}
	l.Completed, l.Increment = s.now(), s.number()
	s.logs[r.Log] = l
	return nil
}

// Rows implements work.Table.
func (s *Store) Rows(ctx context.Context, prefix, after string, limit int) ([]work.Row, string, error) {
	if err := work.CheckRows("rows", prefix, after, limit); err != nil {
		return nil, "", err
	}
	if err := alive(ctx, "rows", prefix); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// after may come from another prefix; nothing before the prefix can match.
	at, found := slices.BinarySearch(s.order, max(after, prefix))
	if found && after >= prefix {
		at++
	}
	var page []work.Row
	for _, t := range s.order[at:] {
		k := key(t)
		if !work.InPrefix(k.Log, prefix) {
			if !strings.HasPrefix(t, prefix) {
				break
			}
			continue // such as a-b, which lies between a and a/b
		}
		if len(page) == limit {
			return page, token(page[limit-1].Key), nil
		}
		page = append(page, s.rows[k].read(s.now()))
	}
	return page, "", nil
}

// token orders rows by log, then number.
func token(k work.Key) string { return fmt.Sprintf("%s/%020d", k.Log, k.Number) }

func key(token string) work.Key {
	n, _ := strconv.ParseUint(token[len(token)-20:], 10, 64)
	return work.Key{Log: token[:len(token)-21], Number: n}
}

// cut sorts the entries and keeps the first limit; next is "" when these are all.
func cut[T any](all []T, limit int, key func(T) string) (page []T, next string) {
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	if len(all) > limit {
		return all[:limit], key(all[limit-1])
	}
	return all, ""
}

// Log implements work.Table.
func (s *Store) Log(ctx context.Context, name string) (work.Log, error) {
	if err := work.CheckLog("log", name); err != nil {
		return work.Log{}, err
	}
	if err := alive(ctx, "log", name); err != nil {
		return work.Log{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.logs[name]
	l.Name = name
	return l, nil
}

// Logs implements work.Table.
func (s *Store) Logs(ctx context.Context, prefix, after string, limit int) ([]work.Log, string, error) {
	if err := work.CheckRows("logs", prefix, after, limit); err != nil {
		return nil, "", err
	}
	if err := alive(ctx, "logs", prefix); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []work.Log
	for name, l := range s.logs {
		if work.InPrefix(name, prefix) && name > after {
			all = append(all, l)
		}
	}
	page, next := cut(all, limit, func(l work.Log) string { return l.Name })
	return page, next, nil
}

// Forget implements work.Table.
func (s *Store) Forget(ctx context.Context, l work.Log) error {
	if err := work.CheckLog("forget", l.Name); err != nil {
		return err
	}
	if err := alive(ctx, "forget", l.Name); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cur, ok := s.logs[l.Name]; !ok || cur.Increment != l.Increment {
		return &work.Error{Op: "forget", Key: l.Name, Err: work.ErrMoved}
	}
	delete(s.logs, l.Name)
	return nil
}
