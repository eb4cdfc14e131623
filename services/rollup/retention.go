package rollup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
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
	// Interval between two looks.
	Interval time.Duration `koanf:"interval" help:"time between two looks for sets and frames whose time is over" needs:"raw|1m|5m|1h|raw_frames"`
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

// retained is how far a resolution's sets are removed.
type retained struct {
	at   time.Time
	to   timegrid.Hour
	full time.Time // the last time that all hours were looked at
}

// fullEvery is how often all hours are looked at: late batches may have made old ones anew.
const fullEvery = 24 * time.Hour

// earliest hour that can have sets: times of samples are nanoseconds in 64 bits.
var earliest = timegrid.HourOfNS(math.MinInt64)

// retain removes what is due. The owner of the first shard does it for all.
func (m *compactions) retain(ctx context.Context) error {
	if !m.s.owns(0) {
		return nil
	}
	var failed []error
	now := m.s.now()
	var confirmed time.Time
	for res, keep := range m.s.cfg.Retention.resolutions() {
		last := m.retained[res]
		if keep == 0 || now.Sub(last.at) < m.s.cfg.Retention.Interval {
			continue
		}
		if confirmed.IsZero() {
			var err error
			if confirmed, err = m.s.confirmedNow(ctx); err != nil {
				return err
			}
		}
		// The last hour that ended so long ago.
		to := timegrid.HourOf(confirmed.Add(-keep).UnixMilli()) - 1
		from, full := last.to, last.full
		if now.Sub(full) >= fullEvery {
			from, full = earliest, now
		}
		rep, err := m.r.Retain(ctx, res, from, to)
		m.s.m.compact.expired.WithLabelValues(res.String()).Add(float64(rep.Sets))
		if rep.Sets > 0 {
			m.s.log.Info("retention removed sets", "resolution", res, "hours", rep.Hours, "sets", rep.Sets, "samples", rep.Samples)
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		m.retained[res] = retained{now, to, full}
	}
	return errors.Join(failed...)
}

func (s *Service) owns(id shard.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.status[id]
	return ok
}
