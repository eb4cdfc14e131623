package maintain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/storeclock"
)

// RetentionConfig is how long blocks stay, by resolution, after their hour's end; 0
// is for ever.
type RetentionConfig struct {
	Raw    time.Duration `koanf:"raw" help:"how long raw samples stay after their hour's end; 0 is for ever"`
	Minute time.Duration `koanf:"1m" help:"how long 1m rows stay; 0 is for ever"`
	Five   time.Duration `koanf:"5m" help:"how long 5m rows stay; 0 is for ever"`
	Hour   time.Duration `koanf:"1h" help:"how long 1h rows stay; 0 is for ever"`
	// RawFrames is how long the frames of accepted batches stay after all their hours ended
	// and were published.
	RawFrames time.Duration `koanf:"raw_frames" help:"how long frames of accepted batches stay after they are rolled up; 0 is for ever"`
	// Interval between two passes.
	Interval time.Duration `koanf:"interval" help:"time between two passes that remove blocks and frames whose time is over" needs:"raw|1m|5m|1h|raw_frames"`
}

// DefaultRetentionConfig keeps everything.
func DefaultRetentionConfig() RetentionConfig { return RetentionConfig{Interval: time.Hour} }

// Validate checks ranges.
func (c RetentionConfig) Validate() error {
	for res, d := range c.resolutions() {
		if d < 0 || d > 0 && d < 24*time.Hour {
			return fmt.Errorf("retention.%s: 0, or at least 24h", res)
		}
	}
	if c.RawFrames < 0 || c.RawFrames > 0 && c.RawFrames < 24*time.Hour {
		return errors.New("retention.raw_frames: 0, or at least 24h")
	}
	if c.Interval <= 0 {
		return errors.New("retention.interval: must be greater than 0")
	}
	return nil
}

func (c RetentionConfig) resolutions() map[timegrid.Resolution]time.Duration {
	return map[timegrid.Resolution]time.Duration{timegrid.Raw: c.Raw, timegrid.OneMinute: c.Minute, timegrid.FiveMinutes: c.Five, timegrid.OneHour: c.Hour}
}

// Within are those of the resolutions whose rows stay no longer than those of res.
func (c RetentionConfig) Within(res timegrid.Resolution, of ...timegrid.Resolution) []timegrid.Resolution {
	kept := c.resolutions()
	return slices.DeleteFunc(of, func(r timegrid.Resolution) bool {
		return kept[res] > 0 && (kept[r] == 0 || kept[r] > kept[res])
	})
}

// FullEvery is how often retention goes through all hours: late batches may have made new
// generations of old ones.
const FullEvery = 24 * time.Hour

// RetentionDeps are what a Retention is built over.
type RetentionDeps struct {
	Store       objstore.Store
	Publisher   *publish.Publisher
	Board       *status.Board
	Metrics     *metrics.Metrics
	Log         *slog.Logger
	Now         func() time.Time
	Clock       storeclock.Clock
	AuthorityID string
	WorkerID    string
}

// Retention removes blocks whose time is over. It is not for concurrent use.
type Retention struct {
	RetentionDeps
	cfg     RetentionConfig
	expirer *compact.Expirer
	of      map[timegrid.Resolution]retained
}

// retained is how far a resolution's blocks are removed.
type retained struct {
	at   time.Time
	to   timegrid.Hour
	full time.Time // the last time that all hours were gone through
}

// NewRetention makes one that has removed nothing yet.
func NewRetention(c RetentionConfig, d RetentionDeps) (*Retention, error) {
	r, err := compact.NewExpirer(compact.ExpirerConfig{Store: d.Store, Publisher: d.Publisher, AuthorityID: d.AuthorityID, WorkerID: d.WorkerID, Now: d.Now})
	if err != nil {
		return nil, err
	}
	return &Retention{RetentionDeps: d, cfg: c, expirer: r, of: map[timegrid.Resolution]retained{}}, nil
}

// Run removes what is due, until ctx ends.
func (r *Retention) Run(ctx context.Context) error {
	return every(ctx, "retention", r.Metrics, r.Log, r.Retain)
}

// Retain removes what is due.
func (r *Retention) Retain(ctx context.Context) error {
	// An hour expires for all shards at one moment, so one worker decides for all: the owner of
	// the first shard.
	if !r.Board.Owns(0) {
		return nil
	}
	var failed []error
	now := r.Now()
	var confirmed time.Time
	for res, keep := range r.cfg.resolutions() {
		last := r.of[res]
		if keep == 0 || now.Sub(last.at) < r.cfg.Interval {
			continue
		}
		if confirmed.IsZero() {
			var err error
			if confirmed, err = r.Clock.Confirmed(ctx); err != nil {
				return err
			}
		}
		// The hour that holds the moment has not ended so long ago, but the one before it has.
		to := timegrid.HourOf(confirmed.Add(-keep).UnixMilli()) - 1
		from, full := last.to, last.full
		if now.Sub(full) >= FullEvery {
			from, full = hour.Earliest, now
		}
		rep, err := r.expirer.Expire(ctx, res, from, to)
		r.Metrics.Expired.WithLabelValues(res.String()).Add(float64(rep.Blocks))
		if rep.Blocks > 0 {
			r.Log.Info("retention removed blocks", "resolution", res, "hours", rep.Hours, "blocks", rep.Blocks, "samples", rep.Samples)
		}
		if err != nil {
			failed = append(failed, err)
			continue // the next pass begins where this one began
		}
		r.of[res] = retained{now, to, full}
	}
	return errors.Join(failed...)
}
