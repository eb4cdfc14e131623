package maintain

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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
	// CopySoon is the wait after a merge has changed the records of a day, as more merges of it may follow; it is never
	// longer than copySoonAtMost. Until then, readers ask for each of these records.
	CopySoon       = time.Minute
	copySoonAtMost = 10 * time.Minute
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

	mu      sync.Mutex
	changed map[layout.Day]change // days that merges have changed since they were looked at
}

// change is when a day was changed first, and last.
type change struct{ first, last time.Time }

// Changed says that the records of some hours, both included, were changed. It may be called from any goroutine.
func (c *Copies) Changed(from, to timegrid.Hour) {
	now := c.Now()
	oldest := layout.DayOf(timegrid.HourOf(now.UnixMilli())) - copyAllDays
	c.mu.Lock()
	defer c.mu.Unlock()
	for d := max(layout.DayOf(from), oldest); d <= layout.DayOf(to); d++ {
		was, ok := c.changed[d]
		if !ok {
			was.first = now
		}
		c.changed[d] = change{was.first, now}
	}
}

// due takes the days that were changed and are to be looked at now, ascending.
func (c *Copies) due(now time.Time) (days []layout.Day) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for d, at := range c.changed {
		if now.Sub(at.last) >= CopySoon || now.Sub(at.first) >= copySoonAtMost {
			days = append(days, d)
			delete(c.changed, d)
		}
	}
	slices.Sort(days)
	return days
}

// NewCopies makes one that has looked at nothing yet.
func NewCopies(d CopiesDeps) *Copies {
	return &Copies{CopiesDeps: d, copier: compact.NewCopier(d.Store, d.AuthorityID, run.Each(d.AtOnce)), changed: map[layout.Day]change{}}
}

// Run copies what is due, until ctx ends.
func (c *Copies) Run(ctx context.Context) error {
	return every(ctx, "copies", c.Metrics, c.Log, c.Copy)
}

// Copy copies what is due.
func (c *Copies) Copy(ctx context.Context) error {
	now := c.Now()
	last := timegrid.HourOf(now.Add(-copyAfter).UnixMilli()) - 1
	// Another worker that copies finds the changes of this one at its next look.
	soon := c.due(now)
	if !c.Board.Owns(0) {
		return nil
	}
	if now.Sub(c.recent) < CopyEvery {
		return c.copyDays(ctx, soon, last)
	}
	today, first, all := layout.DayOf(last), layout.Day(copyDays), c.all
	if now.Sub(c.all) >= CopyAllEvery {
		first, all = copyAllDays, now
	}
	c.copier.Forget(today - copyAllDays)
	var days []layout.Day
	for d := today; d > today-first; d-- {
		days = append(days, d)
	}
	for _, d := range soon {
		if d <= today-first {
			days = append(days, d)
		}
	}
	if err := c.copyDays(ctx, days, last); err != nil {
		return err
	}
	c.recent, c.all = now, all
	return nil
}

// copyDays copies the records of days up to the given hour.
func (c *Copies) copyDays(ctx context.Context, days []layout.Day, last timegrid.Hour) error {
	for k, d := range days {
		written, err := c.copier.Copy(ctx, d, last)
		if err != nil {
			for _, d := range days[k:] {
				c.Changed(d.First(), d.First()) // so that they are tried again
			}
			return fmt.Errorf("copies of %s: %w", d, err)
		}
		if written {
			c.Log.Debug("the records of a day's blocks were copied", "day", d)
		}
	}
	return nil
}
