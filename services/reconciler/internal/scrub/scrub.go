// Package scrub checks, over and over, that the frames of accepted batches are there, byte for byte as far as the
// store's checksum says. The acceptance has verified each of them once, and so has the rollup. Reconcilers share
// the work by the record of internal/derived/scrub.
package scrub

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/scrub"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Scrubbing is for the check of frames.
type Scrubbing struct {
	Period time.Duration `koanf:"period" help:"time in which every frame is checked once, if the rate allows it; 0 is never"`
	Rate   float64       `koanf:"rate" help:"most frames that are checked in a second"`
}

const (
	// again is the wait after an error, and the longest one between two questions whether there is something to check.
	again = 10 * time.Second
	idle  = 10 * time.Minute
	// Lease is after how long a chunk is taken from a process that does not move it; it moves it each quarter of that.
	Lease = 10 * time.Minute
	// releaseTimeout bounds the last move of a process that ends.
	releaseTimeout = 5 * time.Second
)

// Store is what a Scrubber needs of the store.
type Store interface {
	scrub.Store
	objstore.Lister
}

// Scrubber checks the frames of what is folded.
type Scrubber struct {
	cfg    Scrubbing
	log    *slog.Logger
	store  Store
	cursor *scrub.Cursor
	// check reports whether the frame of an entry is where the entry says, and whole.
	check func(context.Context, *journal.Entry) (bool, error)
	// suspect is called with each entry whose frame is not.
	suspect func(context.Context, *journal.Entry) error
	checked atomic.Uint64
	pace    atomic.Uint64 // frames a second, in millionths
	slow    bool          // that the rate is too low was said
}

// New makes a Scrubber; by names the reconciler.
func New(cfg Scrubbing, by string, log *slog.Logger, s Store, check func(context.Context, *journal.Entry) (bool, error), suspect func(context.Context, *journal.Entry) error) *Scrubber {
	// A claim names one process: with the reconciler's id alone, two that share it would share a chunk.
	c := &scrub.Cursor{Store: s, By: by, Claim: rand.Text(), Lease: Lease, Period: cfg.Period}
	return &Scrubber{cfg: cfg, log: log, store: s, cursor: c, check: check, suspect: suspect}
}

// Checked is how many frames were checked.
func (s *Scrubber) Checked() uint64 { return s.checked.Load() }

// Pace is how many frames a second are checked, at most.
func (s *Scrubber) Pace() float64 { return float64(s.pace.Load()) / 1e6 }

// Run takes one chunk after the other until ctx ends.
func (s *Scrubber) Run(ctx context.Context) error {
	if s.cfg.Period == 0 {
		return nil
	}
	for {
		wait, err := s.step(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			s.log.Warn("the check of frames was interrupted; it goes on where it was", "error", err)
			wait = again
		}
		if err := run.Sleep(ctx, min(max(wait, time.Millisecond), s.cfg.Period)); err != nil {
			return err
		}
	}
}

// step checks one chunk, and returns how long there is nothing else to do.
func (s *Scrubber) step(ctx context.Context) (wait time.Duration, err error) {
	now, err := s.date(ctx)
	if err != nil {
		return 0, err
	}
	head, _, err := journal.ReadHead(ctx, s.store)
	if err != nil {
		return 0, err
	}
	job, r, ok, err := s.cursor.Next(ctx, now, &head)
	if err != nil {
		return 0, err
	}
	if !ok {
		next := time.Unix(r.BeganAt, 0).Add(s.cfg.Period).Sub(now)
		if next <= 0 {
			next = again // of an empty journal, or others work at the end of a pass
		}
		return min(next, idle), nil
	}
	if err := s.chunk(ctx, &job, s.limit(&head)); err != nil {
		s.release(&job)
		return 0, err
	}
	if err := s.cursor.Finish(ctx, &job); err != nil && !errors.Is(err, scrub.ErrTakenOver) {
		return 0, err
	}
	return 0, nil
}

// limit is as slow as the period allows.
func (s *Scrubber) limit(head *journal.Head) *rate.Limiter {
	total := uint64(0)
	for _, l := range head.Lists {
		total += l.Entries
	}
	for _, f := range head.Files {
		total += f.Entries
	}
	want := max(1, float64(total)/s.cfg.Period.Seconds())
	if slow := want > s.cfg.Rate; slow != s.slow {
		s.slow = slow
		if slow {
			s.log.Warn("scrub.rate is too low: one reconciler alone takes longer than scrub.period", "frames", total,
				"rate", s.cfg.Rate, "takes", time.Duration(float64(total)/s.cfg.Rate*float64(time.Second)).String())
		}
	}
	want = min(s.cfg.Rate, want)
	s.pace.Store(uint64(want * 1e6))
	return rate.NewLimiter(rate.Limit(want), 1)
}

// chunk checks the frames of a chunk from where it was left.
func (s *Scrubber) chunk(ctx context.Context, j *scrub.Job, limit *rate.Limiter) error {
	moved := time.Now()
	at := uint64(0)
	for _, f := range j.Files {
		if at+f.Entries <= j.Done {
			at += f.Entries
			continue
		}
		entries, err := journal.ReadFile(ctx, s.store, f)
		if err != nil {
			return err // also where it was merged into another one meanwhile, which the next step finds
		}
		for i := range entries {
			if at++; at <= j.Done {
				continue
			}
			if err := s.frame(ctx, limit, &entries[i]); err != nil {
				return err
			}
			j.Done = at
			if time.Since(moved) < Lease/4 {
				continue
			}
			now, err := s.date(ctx)
			if err == nil {
				err = s.cursor.Move(ctx, now, j, false)
			}
			if err != nil {
				return err
			}
			moved = time.Now()
		}
	}
	return nil
}

// release notes where a process stops that fails or ends, so that nobody has to wait for its lease.
func (s *Scrubber) release(j *scrub.Job) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	if err := s.cursor.Move(ctx, time.Unix(0, 0), j, true); err != nil {
		s.log.Warn("the place of the check of frames was not noted", "error", err)
	}
}

// date is the store's time.
func (s *Scrubber) date(ctx context.Context) (time.Time, error) {
	page, err := s.store.List(ctx, objstore.ListOptions{Prefix: layout.JournalOpenPrefix, Limit: 1})
	if err != nil || page.Date.IsZero() {
		return time.Unix(1, 0), err
	}
	return page.Date, nil
}

func (s *Scrubber) frame(ctx context.Context, limit *rate.Limiter, e *journal.Entry) error {
	if err := limit.Wait(ctx); err != nil {
		return err
	}
	ok, err := s.check(ctx, e)
	if err != nil {
		return fmt.Errorf("check the frame of %s: %w", e.ID, err)
	}
	s.checked.Add(1)
	if ok {
		return nil
	}
	return s.suspect(ctx, e)
}
