package maintain

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
)

const (
	// collectAtOnce bounds the items of the delayed queue between two checks of the epoch.
	collectAtOnce = 100
	// sweepTries bounds the hours of other workers that a sweep passes over at once.
	sweepTries = 8
)

// SweepStart is the hour to sweep from that is before all others.
var SweepStart = hour.Earliest - 1

// Collection works the delayed queue off and sweeps hours for what nobody queued. It is not for
// concurrent use.
type Collection struct {
	Collector *publish.Collector
	Board     *status.Board
	Metrics   *metrics.Metrics
	Log       *slog.Logger
	Shards    uint32
	// Interval between two steps; 0 leaves them to other workers.
	Interval time.Duration
	Now      func() time.Time

	plans planSweep
	// forgot is when the records of condemned objects were looked through last.
	forgot time.Time
}

// forgetEvery is the time between two looks through all reference records: what is condemned in that time bounds how many
// there are beside those that live.
const forgetEvery = 24 * time.Hour

// planSweep is where the sweep of plans goes on: behind the key after, of the shard.
type planSweep struct {
	shard shard.ID
	after string
}

// sweepEach is how many steps come to one that sweeps an hour, too. A sweep is a dozen LISTs, and finds what nobody
// queued because a worker crashed: that may wait.
const sweepEach = 10

// InitEpoch begins an epoch of the reference sets where there is none.
func (c *Collection) InitEpoch(ctx context.Context) error {
	_, err := c.Collector.InitEpoch(ctx, rand.Reader, false)
	return err
}

// Run collects until ctx ends.
func (c *Collection) Run(ctx context.Context) error {
	if c.Interval == 0 {
		<-ctx.Done()
		return ctx.Err()
	}
	swept, n := SweepStart, 0
	for {
		if err := (run.WallClock{}).Sleep(ctx, c.Interval); err != nil {
			return err
		}
		var err error
		if n++; n%sweepEach == 0 {
			swept, err = c.Step(ctx, swept)
		} else {
			err = c.collect(ctx)
		}
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("delayed collection failed; it is tried again at the next interval", "error", err)
		}
	}
}

// Step collects what is due, sweeps the hour after swept, and a page of plans. It gives the hour to go on from.
func (c *Collection) Step(ctx context.Context, swept timegrid.Hour) (timegrid.Hour, error) {
	err := c.collect(ctx)
	// An item that can't be read does not keep the sweep from its hour. Crashes leave things that
	// nobody queued.
	h, queued, serr := c.SweepNext(ctx, swept)
	plans, perr := c.sweepPlans(ctx)
	c.Metrics.Swept.Add(float64(queued + plans))
	return h, errors.Join(err, serr, perr, c.forget(ctx))
}

// forget drops the records of objects that were condemned long ago, now and then. The owner of shard 0 does it for all.
func (c *Collection) forget(ctx context.Context) error {
	now := c.Now()
	if !c.Board.Owns(0) || now.Sub(c.forgot) < forgetEvery {
		return nil
	}
	r, err := c.Collector.Forget(ctx, rand.Reader)
	c.Metrics.Forgotten.Add(float64(r.Dropped))
	if err != nil {
		return err
	}
	c.forgot = now
	c.Metrics.References.WithLabelValues("live").Set(float64(r.Records - r.Condemned))
	c.Metrics.References.WithLabelValues("condemned").Set(float64(r.Condemned))
	if r.Dropped > 0 || r.Began {
		c.Log.Info("records of condemned objects were dropped", "dropped", r.Dropped, "condemned", r.Condemned, "records", r.Records, "era", r.Era, "began", r.Began)
	}
	return nil
}

// sweepPlans sweeps the next page of plans of the shards that this worker owns, one shard after the other.
func (c *Collection) sweepPlans(ctx context.Context) (queued int, err error) {
	at := &c.plans
	if at.after == "" || !c.Board.Owns(at.shard) {
		next, ok := c.ownedAfter(at.shard)
		if !ok {
			return 0, nil
		}
		*at = planSweep{shard: next}
	}
	at.after, queued, err = c.Collector.SweepPlans(ctx, at.shard, at.after)
	return queued, err
}

// ownedAfter is the next shard after s that this worker owns, s itself last.
func (c *Collection) ownedAfter(s shard.ID) (shard.ID, bool) {
	for range c.Shards {
		if s = (s + 1) % shard.ID(c.Shards); c.Board.Owns(s) {
			return s, true
		}
	}
	return s, false
}

// collect collects what is due.
func (c *Collection) collect(ctx context.Context) error {
	// The metadata store may have been lost since the last step. A new epoch must be begun before
	// anything is deleted by what the reference sets say.
	err := c.InitEpoch(ctx)
	for err == nil {
		var r publish.Report
		if r, err = c.Collector.Step(ctx, collectAtOnce); r.Items < collectAtOnce {
			break
		}
	}
	return err
}

// SweepNext sweeps the first hour after the given one that falls to this worker, and gives the
// hour to go on from: SweepStart after the last one. Workers share the hours as they share the
// shards, so that more of them sweep faster, and not more often.
func (c *Collection) SweepNext(ctx context.Context, after timegrid.Hour) (at timegrid.Hour, queued int, err error) {
	at = after
	for range sweepTries {
		next, ok := c.nextOwned(at)
		if !ok {
			return after, 0, nil // owns nothing
		}
		// Most hours have nothing, or are another worker's. Asking for the next one that has objects
		// passes over the former with one request; the loop passes over the latter.
		h, found, err := c.Collector.NextHour(ctx, next-1)
		switch {
		case err != nil:
			return at, 0, err
		case !found:
			return SweepStart, 0, nil
		case c.owns(h):
			// Also where it fails: an hour that can't be read has its next turn a round later.
			queued, err = c.Collector.Sweep(ctx, h)
			return h, queued, err
		}
		at = h
	}
	return at, 0, nil
}

// owns reports whether the hour falls to this worker: to the owner of the shard with the hour's
// number, modulo all shards.
func (c *Collection) owns(h timegrid.Hour) bool {
	k := int64(c.Shards)
	return c.Board.Owns(shard.ID((int64(h)%k + k) % k)) // hours before 1970 are negative
}

// nextOwned is the first hour after h that falls to this worker.
func (c *Collection) nextOwned(h timegrid.Hour) (timegrid.Hour, bool) {
	for range c.Shards {
		if h++; c.owns(h) {
			return h, true
		}
	}
	return h, false
}
