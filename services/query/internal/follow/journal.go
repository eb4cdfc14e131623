package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Waits between polls.
const (
	// pollRetry is the wait after a failed poll while none has succeeded yet.
	pollRetry = time.Second
	// quietPolls is how many polls without news make the wait twice as long.
	quietPolls = 5
	// expireEvery is how often what has left the window is dropped.
	expireEvery = 5 * time.Second
)

// pollLoop polls until ctx ends.
func (f *Follower) pollLoop(ctx context.Context) error {
	quiet, wait := 0, f.cfg.PollInterval
	var expired time.Time
	for {
		news, err := f.poll(ctx)
		if errors.Is(err, journal.ErrHeadWentBack) {
			// What is in memory may be of batches that the bucket does not have any more. Nothing that is kept can
			// be trusted, so the process starts again.
			return err
		}
		if err != nil && ctx.Err() == nil {
			f.d.Log.Warn("poll of the journal failed; complete_through stays", "error", err)
		}
		if now := f.d.Now(); now.Sub(expired) >= min(expireEvery, f.cfg.PollInterval) {
			f.d.Live.Expire(now)
			expired = now
		}
		quiet++
		if news || err != nil {
			quiet, wait = 0, f.cfg.PollInterval
		}
		if quiet >= quietPolls {
			quiet, wait = 0, min(2*wait, f.cfg.IdleInterval)
		}
		d := wait
		if !f.watchesAll() {
			d = f.cfg.PollInterval
		}
		if err != nil {
			d = max(d, min(pollRetry, f.cfg.PollInterval))
		}
		t := time.NewTimer(d)
		select {
		case <-ctx.Done():
		case <-t.C:
		case <-f.kick:
			quiet, wait = 0, f.cfg.PollInterval
		}
		t.Stop()
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// pollSoon asks for a poll now. One that was asked for already is enough.
func (f *Follower) pollSoon() { signal(f.kick) }

// Poll reads what the journal has. What it proves counts once the frames that it named were taken.
func (f *Follower) Poll(ctx context.Context) error {
	_, err := f.poll(ctx)
	return err
}

func (f *Follower) poll(ctx context.Context) (news bool, err error) {
	f.polling.Lock()
	defer f.polling.Unlock()
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PollTimeout)
	defer cancel()
	began := f.d.Now()
	f.mu.Lock()
	f.polls.begun++
	number := f.polls.begun
	f.mu.Unlock()
	got, err := f.pollJournal(ctx, began)
	f.m.poll(got, err, f.d.Now().Sub(began))

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lastErr = err; err == nil {
		f.polls.done, f.polls.by, f.since = number, f.journal, began
	}
	close(f.polls.ended)
	f.polls.ended = make(chan struct{})
	f.pollOnce.Do(func() { close(f.polled) })
	return got.Segments > 0, err
}

func (f *Follower) pollJournal(ctx context.Context, began time.Time) (journal.Polled, error) {
	j, err := f.open(ctx)
	if err != nil {
		return journal.Polled{}, err
	}
	f.learnHelps(ctx)
	f.mu.Lock()
	begin, since, withBlocks := f.begin, f.since, f.withBlocks
	known := begin.Covers(f.lost)
	f.mu.Unlock()
	if !known {
		// Before the poll: an audit that makes the journal complete writes its entries first, so that this poll
		// finds them.
		if begin, err = journal.ReadBegin(ctx, f.d.Store); err != nil {
			return journal.Polled{}, err
		}
	}
	got, err := j.Poll(ctx)
	if err != nil {
		return got, err
	}
	failpoint.Hit("query.poll.done.before")
	if since.IsZero() {
		since = began
	}
	f.mu.Lock()
	f.begin, f.lost = begin, got.Lost
	f.mu.Unlock()
	f.queue.prove(mark{through: got.Through, since: since, begun: begin.Covers(got.Lost), blocks: withBlocks})
	f.advanced()
	return got, nil
}

// advanced follows what counts by now.
func (f *Follower) advanced() {
	p := f.queue.proven()
	if p.blocks {
		f.d.Blocks.Serve()
	}
	if !p.since.IsZero() {
		f.firstOnce.Do(func() { close(f.first) })
	}
}

// fan reads runs and files side by side.
func (f *Follower) fan(ctx context.Context, n int, do func(context.Context, int) error) error {
	errs := make([]error, n)
	var g errgroup.Group
	g.SetLimit(f.cfg.Readers)
	for i := range n {
		g.Go(func() error {
			errs[i] = do(ctx, i)
			return nil
		})
	}
	_ = g.Wait() // the functions return none
	return errors.Join(errs...)
}

// apply counts what was accepted, and queues what is to be fetched. run is where the entries stand; zero in folded files.
func (f *Follower) apply(ctx context.Context, run journal.RunID, entries []journal.Entry) error {
	f.book.apply(entries)
	batches := make([]accepted.Batch, 0, len(entries))
	for i := range entries {
		if e := &entries[i]; e.Outcome.Counts() {
			batches = append(batches, e.Batch())
		}
	}
	return f.enqueue(ctx, run, batches)
}

// enqueue queues those batches that are to be in memory and are not.
func (f *Follower) enqueue(ctx context.Context, run journal.RunID, batches []accepted.Batch) error {
	queued := batches[:0]
	for _, b := range batches {
		if f.d.Live.Known(b.Identity) && !f.isUnread(b.Identity) {
			continue
		}
		wanted, err := f.wanted(ctx, b.Identity, b.MinTime, b.MaxTime)
		if err != nil {
			return fmt.Errorf("blocks of %s: %w", b.Identity, err)
		}
		if wanted {
			queued = append(queued, b)
		}
	}
	return f.queue.add(ctx, run, queued)
}

// watchesAll reports whether there are watches, and all of them are on.
func (f *Follower) watchesAll() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.cfg.Watch) > 0 && len(f.watches) == len(f.cfg.Watch)
}

// retryLoop tries unreadable batches again until ctx ends.
func (f *Follower) retryLoop(ctx context.Context) error {
	for {
		if err := run.Sleep(ctx, f.cfg.RetryInterval); err != nil {
			return err
		}
		f.RetryUnread(ctx)
	}
}
