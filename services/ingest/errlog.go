package ingest

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// errlog logs what was not accepted, a few lines a second at most: a broken sender
// must not fill the disk. What was held back is counted in the next line.
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
