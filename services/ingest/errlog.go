package ingest

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// errlog logs batches that were not accepted, at most a few lines a second, so that a broken
// sender can't fill the disk. The next line has the number of lines that were suppressed.
type errlog struct {
	out     *slog.Logger
	limiter *rate.Limiter
	now     func() time.Time
	held    atomic.Uint64
}

const (
	errlogPerSecond = 5
	errlogBurst     = 20
)

func newErrlog(l *slog.Logger, now func() time.Time) *errlog {
	return &errlog{out: l, limiter: rate.NewLimiter(errlogPerSecond, errlogBurst), now: now}
}

func (e *errlog) log(ctx context.Context, msg string, args ...any) {
	if !e.limiter.AllowN(e.now(), 1) {
		e.held.Add(1)
		return
	}
	if n := e.held.Swap(0); n > 0 {
		args = append(args, "lines_held_back", n)
	}
	e.out.WarnContext(ctx, msg, args...)
}
