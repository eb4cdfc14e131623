package follow

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/peerframes"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// unreadable says why an accepted batch can't be read now although the store answers.
type unreadable struct{ err error }

func (e *unreadable) Error() string { return e.err.Error() }
func (e *unreadable) Unwrap() error { return e.err }

// wanted reports that a batch is to be in memory: its samples are in the window, or blocks lack it.
func (f *Follower) wanted(ctx context.Context, id identity.Batch, minNS, maxNS int64) (bool, error) {
	if maxNS >= f.d.Now().Add(-f.d.History).UnixNano() {
		return true, nil
	}
	return f.d.Blocks.Missing(ctx, id, minNS, maxNS)
}

// fetchLoop fetches what is queued until ctx ends.
func (f *Follower) fetchLoop(ctx context.Context) error {
	// At the start whole packs of frames are read, once it is known which frames are needed.
	for reading := true; reading; {
		select {
		case <-f.polled:
			reading = false
		case <-f.queue.full:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := f.takeQueued(ctx, f.cfg.Snapshots); err != nil && ctx.Err() == nil {
			f.d.Log.Warn("batches can't be fetched yet", "error", err)
		}
	}
	var g errgroup.Group
	g.SetLimit(f.cfg.Fetchers)
	defer func() { _ = g.Wait() }() // the functions return no errors
	for ctx.Err() == nil {
		w, wait := f.queue.next(f.d.Now())
		if w != nil {
			if p := f.peerOf(w); p != nil {
				ws := f.queue.alike(w)
				g.Go(func() error {
					f.fetchFrom(ctx, p, ws)
					return nil
				})
				continue
			}
			g.Go(func() error {
				f.fetch(ctx, w)
				return nil
			})
			continue
		}
		if wait == 0 {
			wait = time.Minute
		}
		t := time.NewTimer(wait)
		select {
		case <-f.queue.more:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return ctx.Err()
}

// takeQueued takes everything that is queued; packs says that whole packs of frames may save requests.
func (f *Follower) takeQueued(ctx context.Context, packs bool) error {
	ws := f.queue.takeAll()
	if packs && len(ws) > 0 {
		ws = f.fromPacks(ctx, ws)
	}
	errs := make([]error, len(ws))
	var g errgroup.Group
	g.SetLimit(f.cfg.Fetchers)
	for i, w := range ws {
		g.Go(func() error {
			errs[i] = f.fetch(ctx, w)
			return nil
		})
	}
	_ = g.Wait() // the functions return none
	return errors.Join(errs...)
}

// Waits before a frame is fetched again, of which the store did not say anything.
const (
	fetchRetry    = time.Second
	fetchRetryMax = 30 * time.Second
)

// fetch takes a queued batch. After an error it is queued again.
func (f *Follower) fetch(ctx context.Context, w *want) error {
	fctx, cancel := context.WithTimeout(ctx, f.cfg.FetchTimeout)
	defer cancel()
	return f.fetched(w, f.take(fctx, w.batch))
}

// fetched ends the attempt to take a queued batch. After an error it is queued again.
func (f *Follower) fetched(w *want, err error) error {
	if err != nil {
		f.m.fetchFailures.Inc()
		f.queue.retry(w, f.d.Now().Add(min(fetchRetry<<min(w.failures, 5), fetchRetryMax)))
		return err
	}
	f.finish(w)
	return nil
}

// peerOf is the collector that may have a batch's frame in memory; nil where the store is to be asked.
func (f *Follower) peerOf(w *want) *peerframes.Peer {
	if w.stored || !peerframes.Fits(&w.batch, 0, 0) {
		return nil
	}
	return f.peers.Of(w.run)
}

// fetchFrom takes queued batches whose frames a collector may have in memory. What it does not send is queued again, to be
// read from the store.
func (f *Follower) fetchFrom(ctx context.Context, p *peerframes.Peer, ws []*want) {
	var asked []*want
	var batches []accepted.Batch
	nctx, cancel := context.WithTimeout(ctx, f.cfg.FetchTimeout)
	defer cancel()
	for _, w := range ws {
		need, err := f.needs(nctx, w.batch)
		if err == nil && need {
			asked, batches = append(asked, w), append(batches, w.batch)
			continue
		}
		_ = f.fetched(w, err) // it is counted, and tried again
	}
	if len(asked) == 0 {
		return
	}
	p.Read(ctx, batches, func(i int, raw []byte) {
		w := asked[i]
		asked[i] = nil
		_ = f.fetched(w, f.took(w.batch, f.show(w.batch, raw))) // it is counted, and tried again
	})
	f.queue.fromStore(slices.DeleteFunc(asked, func(w *want) bool { return w == nil }))
}

func (f *Follower) finish(w *want) {
	f.queue.finish(w)
	f.advanced()
}

// take fetches one batch: it is then in memory, noted as unreadable, or not needed any more. An error means that
// nothing is known, since the store could not be asked.
func (f *Follower) take(ctx context.Context, b accepted.Batch) error {
	if need, err := f.needs(ctx, b); err != nil || !need {
		return err
	}
	raw, err := accept.ReadFrame(ctx, f.d.Store, b.RawBlobKey, b.FrameSHA256, b.FrameBytes)
	var none *accept.FrameError
	if errors.As(err, &none) {
		err = &unreadable{none.Cause}
	}
	if err == nil {
		err = f.show(b, raw)
	}
	return f.took(b, err)
}

// needs reports whether a queued batch is still to be fetched.
func (f *Follower) needs(ctx context.Context, b accepted.Batch) (bool, error) {
	id := b.Identity
	if f.d.Live.Known(id) && !f.isUnread(id) {
		return false, nil
	}
	wanted, err := f.wanted(ctx, id, b.MinTime, b.MaxTime)
	if err != nil {
		return false, err
	}
	if !wanted {
		f.readable(id) // blocks have it, or nobody can reach it
		f.m.taken.WithLabelValues("expired").Inc()
	}
	return wanted, nil
}

// took notes how the attempt to read a frame ended. An error is one of the store.
func (f *Follower) took(b accepted.Batch, err error) error {
	var bad *unreadable
	switch {
	case errors.As(err, &bad):
		// The identity still masks what it has won of other batches, so the store must know it.
		if _, nerr := f.d.Live.Note(b, f.d.Now()); nerr != nil {
			err = errors.Join(err, nerr)
		}
		f.noteUnread(b, err)
		return nil
	case err != nil:
		return err
	}
	// A repair may have written the frame since the last attempt.
	f.readable(b.Identity)
	f.m.lag(f.d.Now().Sub(time.Unix(0, b.AcceptedAt)))
	return nil
}

// show decodes a frame and inserts it into the live store.
func (f *Follower) show(acc accepted.Batch, raw []byte) error {
	b := batches.Get().(*frame.Batch)
	defer batches.Put(b)
	if err := frame.Decode(raw, b, frame.Limits{}); err != nil {
		return &unreadable{err}
	}
	failpoint.Hit("query.live.insert.before")
	out, err := f.d.Live.Insert(acc, b, f.d.Now())
	if err != nil {
		return &unreadable{err}
	}
	failpoint.Hit("query.live.insert.after")
	f.m.inserted(out, len(raw), acc.Identity.Count())
	return nil
}

// positive cuts off negative durations: the collector's clock may be ahead of this one.
func positive(d time.Duration) time.Duration { return max(d, 0) }
