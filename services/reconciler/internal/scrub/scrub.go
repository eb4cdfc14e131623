// Package scrub checks, over and over, that the frames of accepted batches and of conflicts are there: it reads and hashes
// their bytes, or trusts the store's checksum where it is told to. The acceptance has verified each of them once, and
// so has the rollup. Reconcilers share the work by the record of internal/derived/scrub.
package scrub

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
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
	Bytes  float64       `koanf:"bytes_per_second" help:"most bytes of frames that are read in a second"`
	Verify string        `koanf:"verify" help:"bytes: read and hash every frame; checksum: ask for the store's checksum, where it keeps one"`
}

// Values of Scrubbing.Verify.
const (
	VerifyBytes    = "bytes"
	VerifyChecksum = "checksum"
)

// Default is what a reconciler does unless told otherwise.
func Default() Scrubbing {
	return Scrubbing{Period: 7 * 24 * time.Hour, Rate: 50, Bytes: 16 << 20, Verify: VerifyBytes}
}

// Validate checks ranges.
func (c Scrubbing) Validate() error {
	var errs []error
	if c.Period < 0 {
		errs = append(errs, errors.New("scrub.period: must not be negative"))
	}
	if c.Rate <= 0 || c.Bytes <= 0 {
		errs = append(errs, errors.New("scrub.rate, scrub.bytes_per_second: must be greater than 0"))
	}
	if c.Verify != VerifyBytes && c.Verify != VerifyChecksum {
		errs = append(errs, fmt.Errorf("scrub.verify %q: want %s or %s", c.Verify, VerifyBytes, VerifyChecksum))
	}
	return errors.Join(errs...)
}

const (
	// parallel is how many frames are read at a time, so that the pace does not depend on how long one takes. All of them have
	// ended before the next ones begin: what is checked again after an error is no more.
	parallel = 8
	// spare is the part of a period that a pass is to leave over.
	spare = 0.1
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
	// check reports whether the frame of an entry is where the entry says, and whole; read: its bytes are hashed.
	check func(ctx context.Context, e *journal.Entry, read bool) (bool, error)
	// suspect is called with each entry whose frame is not.
	suspect  func(context.Context, *journal.Entry) error
	now      func() time.Time
	bytes    *rate.Limiter
	checked  atomic.Uint64
	hashed   atomic.Uint64 // bytes
	suspects atomic.Uint64
	pace     atomic.Uint64 // frames a second, in millionths
	known    atomic.Pointer[Status]
	slow     bool // that the rate is too low was said
}

// Status is how far the scrub was when this process asked last.
type Status struct {
	scrub.Record
	// Frames that a pass checks, as far as the journal is folded.
	Frames uint64
}

// reads reports whether the bytes of frames are hashed.
func (c Scrubbing) reads() bool { return c.Verify == VerifyBytes }

// New makes a Scrubber; by names the reconciler.
func New(cfg Scrubbing, by string, log *slog.Logger, s Store, check func(context.Context, *journal.Entry, bool) (bool, error), suspect func(context.Context, *journal.Entry) error, now func() time.Time) *Scrubber {
	// A claim names one process: with the reconciler's id alone, two that share it would share a chunk.
	c := &scrub.Cursor{Store: s, By: by, Claim: rand.Text(), Lease: Lease, Period: cfg.Period}
	return &Scrubber{cfg: cfg, log: log, store: s, cursor: c, check: check, suspect: suspect, now: now, bytes: rate.NewLimiter(rate.Limit(cfg.Bytes), max(1, int(min(cfg.Bytes, 1<<30))))}
}

// Checked is how many frames were checked.
func (s *Scrubber) Checked() uint64 { return s.checked.Load() }

// Hashed is how many bytes of frames were read and hashed, and Suspects how many frames were not where they belong, or damaged.
func (s *Scrubber) Hashed() uint64   { return s.hashed.Load() }
func (s *Scrubber) Suspects() uint64 { return s.suspects.Load() }

// Status is nil before the scrub was asked for.
func (s *Scrubber) Status() *Status { return s.known.Load() }

// Unverified is for how long, at most, some frame was not checked; 0 where that is not known.
func (s *Scrubber) Unverified() time.Duration {
	st := s.known.Load()
	if st == nil {
		return 0
	}
	return max(0, s.now().Sub(time.Unix(st.VerifiedSince(), 0)))
}

// Overdue is for how long the pass, or the begin of the next one, is late.
func (s *Scrubber) Overdue() time.Duration {
	st := s.known.Load()
	if st == nil || s.cfg.Period == 0 {
		return 0
	}
	return max(0, s.now().Sub(st.Due(s.cfg.Period)))
}

// Progress is the part of the pass's frames that was checked, 0 to 1.
func (s *Scrubber) Progress() float64 {
	st := s.known.Load()
	switch {
	case st == nil:
		return 0
	case st.EndedAt > 0 || st.Frames == 0:
		return 1
	}
	checked, _, _ := st.Record.Progress()
	return min(1, float64(checked)/float64(st.Frames))
}

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
	frames := folded(&head)
	s.known.Store(&Status{r, frames})
	if !ok {
		next := time.Unix(r.BeganAt, 0).Add(s.cfg.Period).Sub(now)
		if next <= 0 {
			next = again // of an empty journal, or others work at the end of a pass
		}
		return min(next, idle), nil
	}
	if err := s.chunk(ctx, &job, s.limit(frames)); err != nil {
		s.release(&job)
		return 0, err
	}
	if err := s.cursor.Finish(ctx, &job); err != nil && !errors.Is(err, scrub.ErrTakenOver) {
		return 0, err
	}
	return 0, nil
}

// folded counts the entries of the journal's files.
func folded(head *journal.Head) (total uint64) {
	for _, l := range head.Lists {
		total += l.Entries
	}
	for _, f := range head.Files {
		total += f.Entries
	}
	return total
}

// limit is as slow as the period allows.
func (s *Scrubber) limit(total uint64) *rate.Limiter {
	want := max(1, float64(total)/(s.cfg.Period.Seconds()*(1-spare)))
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
		done := min(uint64(len(entries)), j.Done-min(at, j.Done))
		for rest := entries[done:]; len(rest) > 0; {
			n := min(len(rest), parallel)
			if err := s.block(ctx, j, rest[:n], limit); err != nil {
				return err
			}
			rest = rest[n:]
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
			s.moved(j)
			moved = time.Now()
		}
		at += f.Entries
	}
	return nil
}

// block checks up to parallel entries at a time, and counts those of the chunk that were checked without a gap: of an error
// little is checked again.
func (s *Scrubber) block(ctx context.Context, j *scrub.Job, entries []journal.Entry, limit *rate.Limiter) error {
	var mu sync.Mutex
	ended := make([]struct {
		ok    bool
		found found
	}, len(entries))
	g, gctx := errgroup.WithContext(ctx)
	for i := range entries {
		g.Go(func() error {
			f, err := s.frame(gctx, limit, &entries[i])
			mu.Lock()
			defer mu.Unlock()
			ended[i].ok, ended[i].found = err == nil, f
			return err
		})
	}
	err := g.Wait()
	if err == nil {
		err = ctx.Err()
	}
	for i := range ended {
		if !ended[i].ok {
			break
		}
		j.Done, j.Bytes, j.Suspects = j.Done+1, j.Bytes+ended[i].found.bytes, j.Suspects+ended[i].found.suspects
	}
	return err
}

// moved shows how far this process's chunk is.
func (s *Scrubber) moved(j *scrub.Job) {
	st := *s.known.Load()
	st.Chunks = slices.Clone(st.Chunks)
	for i := range st.Chunks {
		if st.Chunks[i].First == j.First {
			st.Chunks[i] = j.Chunk
		}
	}
	s.known.Store(&st)
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

// found is what the check of frames has found.
type found struct{ bytes, suspects uint64 }

func (s *Scrubber) frame(ctx context.Context, limit *rate.Limiter, e *journal.Entry) (f found, err error) {
	if e.Outcome == journal.Elsewhere {
		return f, nil // its frame is another region's
	}
	if err := limit.Wait(ctx); err != nil {
		return f, err
	}
	read := s.cfg.reads()
	if read || e.Inline { // what a record carries is always hashed
		f.bytes = e.Bytes
		for rest := e.Bytes; rest > 0; {
			n := min(rest, uint64(s.bytes.Burst()))
			if err := s.bytes.WaitN(ctx, int(n)); err != nil {
				return f, err
			}
			rest -= n
		}
	}
	ok, err := s.check(ctx, e, read)
	if err != nil {
		return f, fmt.Errorf("check the frame of %s: %w", e.ID, err)
	}
	s.checked.Add(1)
	if ok {
		s.hashed.Add(f.bytes)
		return f, nil
	}
	f = found{suspects: 1}
	s.suspects.Add(1)
	return f, s.suspect(ctx, e)
}
