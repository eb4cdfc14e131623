package maintain

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
)

// How often and how far back copies are made.
const (
	// CopyEvery is the wait between two looks at the last days, of which one is the day that is not over.
	CopyEvery = time.Hour
	copyDays  = 3
	// CopyAllEvery is the wait between two looks at all days that queries read by default: late batches and
	// compactions change old ones, too.
	CopyAllEvery = 24 * time.Hour
	copyAllDays  = 35
	// copyAfter is the wait after the end of an hour, when most of it is rolled up.
	copyAfter = 10 * time.Minute
)

// CopiesDeps are what Copies are built over.
type CopiesDeps struct {
	Store       compact.CopierStore
	Board       *status.Board
	Metrics     *metrics.Metrics
	Log         *slog.Logger
	Now         func() time.Time
	AuthorityID string
	// AtOnce bounds the records that are read at once.
	AtOnce int
}

// Copies keeps the copies of block records, from which query nodes read many hours with few requests. The owner of the
// first shard does it for all. It is not for concurrent use.
type Copies struct {
	CopiesDeps
	copier      *compact.Copier
	recent, all time.Time // when the last days, and all days, were looked at
}

// NewCopies makes one that has looked at nothing yet.
func NewCopies(d CopiesDeps) *Copies {
	return &Copies{CopiesDeps: d, copier: compact.NewCopier(d.Store, d.AuthorityID, run.Each(d.AtOnce))}
}

// Run copies what is due, until ctx ends.
func (c *Copies) Run(ctx context.Context) error {
	return every(ctx, "copies", c.Metrics, c.Log, c.Copy)
}

// Copy copies what is due.
func (c *Copies) Copy(ctx context.Context) error {
	now := c.Now()
	if !c.Board.Owns(0) || now.Sub(c.recent) < CopyEvery {
		return nil
	}
	last := timegrid.HourOf(now.Add(-copyAfter).UnixMilli()) - 1
	today, days, all := layout.DayOf(last), layout.Day(copyDays), c.all
	if now.Sub(c.all) >= CopyAllEvery {
		days, all = copyAllDays, now
	}
	c.copier.Forget(today - copyAllDays)
	for d := today; d > today-days; d-- {
		written, err := c.copier.Copy(ctx, d, last)
		if err != nil {
			return fmt.Errorf("copies of %s: %w", d, err)
		}
		if written {
			c.Log.Debug("the records of a day's blocks were copied", "day", d)
		}
	}
	c.recent, c.all = now, all
	return nil
}
