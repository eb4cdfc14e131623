// Package scrub checks, over and over, that the frames of accepted batches are there, byte for byte as far as the
// store's checksum says. The acceptance has verified each of them once, and so has the rollup.
package scrub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Scrubbing is for the check of frames.
type Scrubbing struct {
	Period time.Duration `koanf:"period" help:"time in which every frame is checked once, if the rate allows it; 0 is never"`
	Rate   float64       `koanf:"rate" help:"most frames that are checked in a second"`
}

// again is the wait after a pass that failed, or over a journal without files.
const again = 10 * time.Second

// Scrubber checks the frames of what is folded.
type Scrubber struct {
	cfg   Scrubbing
	log   *slog.Logger
	store objstore.Getter
	// check reports whether the frame of an entry is where the entry says, and whole.
	check func(context.Context, *journal.Entry) (bool, error)
	// suspect is called with each entry whose frame is not.
	suspect func(context.Context, *journal.Entry) error
	checked atomic.Uint64
}

// New makes a Scrubber.
func New(cfg Scrubbing, log *slog.Logger, s objstore.Getter, check func(context.Context, *journal.Entry) (bool, error), suspect func(context.Context, *journal.Entry) error) *Scrubber {
	return &Scrubber{cfg: cfg, log: log, store: s, check: check, suspect: suspect}
}

// Checked is how many frames were checked.
func (s *Scrubber) Checked() uint64 { return s.checked.Load() }

// Run makes one pass after the other until ctx ends.
func (s *Scrubber) Run(ctx context.Context) error {
	if s.cfg.Period == 0 {
		return nil
	}
	for {
		began := time.Now()
		n, err := s.pass(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		wait := min(again, s.cfg.Period)
		if err != nil {
			s.log.Warn("the check of frames was interrupted; it begins again", "error", err)
		} else if n > 0 {
			wait = s.cfg.Period - time.Since(began)
		}
		if err := run.Sleep(ctx, max(wait, time.Millisecond)); err != nil {
			return err
		}
	}
}

// pass checks every frame once. It begins anywhere, because a process that is often started again would otherwise
// check the first ones only.
func (s *Scrubber) pass(ctx context.Context) (uint64, error) {
	head, _, err := journal.ReadHead(ctx, s.store)
	if err != nil {
		return 0, err
	}
	files, err := head.FilesAfter(ctx, s.store, 0)
	if err != nil || len(files) == 0 {
		return 0, err
	}
	total := uint64(0)
	for _, f := range files {
		total += f.Entries
	}
	limit := rate.NewLimiter(rate.Limit(min(s.cfg.Rate, max(1, float64(total)/s.cfg.Period.Seconds()))), 1)
	first := rand.IntN(len(files))
	for i := range files {
		f := files[(first+i)%len(files)]
		entries, err := journal.ReadFile(ctx, s.store, f)
		if errors.Is(err, objstore.ErrNotFound) {
			continue // merged into another one meanwhile, which the next pass reads
		}
		if err != nil {
			return 0, err
		}
		for i := range entries {
			if err := s.frame(ctx, limit, &entries[i]); err != nil {
				return 0, err
			}
		}
	}
	return total, nil
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
