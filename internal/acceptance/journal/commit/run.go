package commit

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Between attempts after a failed request. The store has made attempts of its own by then.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// Run writes segments until ctx ends; then it writes what waits and closes the run, within
// some seconds. Callers whose entries wait at the end get ErrClosed.
func (c *Committer) Run(ctx context.Context) error {
	defer c.end()
	backoff := run.NewBackoff(minBackoff, maxBackoff)
	last := c.cfg.Now() // when an entry was last written
	for {
		c.linger(ctx)
		c.take()
		c.look()
		var err error
		begins := c.wantsBegin()
		switch {
		case ctx.Err() != nil:
			c.close(context.WithoutCancel(ctx))
			return nil
		case c.writer.Waiting() > 0:
			err = c.flush(ctx)
			last = c.cfg.Now()
		case len(begins) > 0:
			err = c.begin(ctx, begins)
			last = c.cfg.Now()
		case c.cfg.Idle > 0 && c.writer.Open() && c.cfg.Now().Sub(last) >= c.cfg.Idle:
			err = c.closeRun(ctx)
		case c.writer.Behind():
			err = c.writer.Renew(ctx)
		default:
			c.wait(ctx, last)
			continue
		}
		if !c.note(ctx, err) {
			backoff.Reset()
			continue
		}
		_ = backoff.Sleep(ctx) // ends early with ctx, which the loop checks
	}
}

// look notes what the next segment will name.
func (c *Committer) look() {
	if c.cfg.Epochs == nil {
		return
	}
	if names := c.writer.Current(); names != nil {
		c.current.Store(&names)
		return
	}
	c.current.Store(nil)
}

// wait waits for an entry, a call of Begin, the idle time or the end of ctx.
func (c *Committer) wait(ctx context.Context, last time.Time) {
	var idle <-chan time.Time
	if c.cfg.Idle > 0 && c.writer.Open() {
		t := time.NewTimer(c.cfg.Idle - c.cfg.Now().Sub(last))
		defer t.Stop()
		idle = t.C
	}
	select {
	case <-c.wake:
	case <-idle:
	case <-ctx.Done():
	}
}

// linger waits until the oldest entry of the queue has waited long enough, or fills a segment with others, where that
// is worth it.
func (c *Committer) linger(ctx context.Context) {
	if c.cfg.Linger == 0 || !c.pace.lets(c.cfg.Linger) {
		return
	}
	c.mu.Lock()
	n := len(c.queue)
	var left time.Duration
	if n > 0 {
		left = c.cfg.Linger - c.cfg.Now().Sub(c.queue[0].at)
	}
	c.mu.Unlock()
	if n == 0 || n >= journal.MaxSegmentEntries || left <= 0 {
		return
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.full:
	case <-ctx.Done():
	}
}

// take gives the queue to the writer.
func (c *Committer) take() {
	c.mu.Lock()
	queue := c.queue
	c.queue = nil
	c.mu.Unlock()
	c.pace.came(c.cfg.Now(), len(queue))
	for _, t := range queue {
		no, err := c.writer.Add(t.entry)
		if err != nil { // Add has validated it, so this does not happen
			c.finish(t, journal.Position{}, err)
			continue
		}
		t.no = no
		c.added = append(c.added, t)
	}
}

func (c *Committer) wantsBegin() []*ticket {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.begins
}

func (c *Committer) begin(ctx context.Context, begins []*ticket) error {
	at, err := c.writer.Begin(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.begins = c.begins[len(begins):]
	c.mu.Unlock()
	for _, t := range begins {
		t.pos = at
		close(t.done)
	}
	return nil
}

// flush writes one segment, and answers those whose entries are durable by it.
func (c *Committer) flush(ctx context.Context) error {
	if f := c.cfg.Events.Writing; f != nil {
		f()
	}
	began := c.cfg.Now()
	at, done, err := c.writer.Flush(ctx)
	if err != nil {
		return err
	}
	c.pace.wrote(c.cfg.Now().Sub(began))
	n := 0
	for n < len(c.added) && c.added[n].no <= done {
		n++
	}
	if n > 0 && c.cfg.Events.Durable != nil {
		entries := make([]*journal.Entry, n)
		for i, t := range c.added[:n] {
			entries[i] = &t.entry
		}
		c.cfg.Events.Durable(at, entries, c.cfg.Now().Sub(c.added[0].at))
	}
	for _, t := range c.added[:n] {
		t.spared = c.writer.Spared(t.no)
		c.finish(t, at, nil)
	}
	c.added = append(c.added[:0], c.added[n:]...)
	return nil
}

func (c *Committer) finish(t *ticket, at journal.Position, err error) {
	c.mu.Lock()
	c.waiting--
	c.mu.Unlock()
	t.pos, t.err = at, err
	close(t.done)
}

func (c *Committer) closeRun(ctx context.Context) error {
	err := c.writer.Close(ctx)
	if err == nil && c.cfg.Events.Closed != nil {
		c.cfg.Events.Closed()
	}
	return err
}

// note notes what became of a request, and reports whether it failed.
func (c *Committer) note(ctx context.Context, err error) bool {
	c.mu.Lock()
	switch {
	case err == nil:
		c.since = time.Time{}
	case c.failing == nil:
		c.since = c.cfg.Now()
	}
	c.failing = err
	c.mu.Unlock()
	if err != nil && ctx.Err() == nil && c.cfg.Events.Failed != nil {
		c.cfg.Events.Failed(err)
	}
	return err != nil
}

// close writes what waits and ends the run, as far as the store lets it. A run that stays open
// is fenced later, by a reconciler.
func (c *Committer) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CloseTimeout)
	defer cancel()
	backoff := run.NewBackoff(minBackoff, maxBackoff)
	for ctx.Err() == nil {
		c.take()
		var err error
		switch {
		case c.writer.Waiting() > 0:
			err = c.flush(ctx)
		case !c.writer.Open() || c.cfg.KeepOpen != nil && c.cfg.KeepOpen():
			return
		default:
			err = c.closeRun(ctx)
		}
		if c.note(ctx, err) {
			_ = backoff.Sleep(ctx) // ends early with ctx, which the loop checks
		}
	}
}

// end answers everybody who still waits.
func (c *Committer) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	left := append(append(c.added, c.queue...), c.begins...)
	c.added, c.queue, c.begins, c.waiting = nil, nil, nil, 0
	for _, t := range left {
		t.err = ErrClosed
		close(t.done)
	}
}
