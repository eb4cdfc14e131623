package rollup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// CompactConfig is the merging of blocks into larger objects.
type CompactConfig struct {
	Interval time.Duration `koanf:"interval" help:"least time between two looks for sets to merge; 0 merges none"`
	After    time.Duration `koanf:"after" help:"time after the end of a span before its sets are merged; late batches should be there by then" needs:"interval"`
	Group    uint32        `koanf:"group" help:"most shards that are merged; the owner of the first of a group does it" needs:"interval"`
	Object   config.Bytes  `koanf:"object" help:"size from which on a merged chunk is ended" needs:"interval"`
	Memory   config.Bytes  `koanf:"memory" help:"most bytes of objects that are merged at once; about what it takes of memory" needs:"interval"`
	Back     int           `koanf:"back" help:"how many of the longest spans of a resolution are looked back" needs:"interval"`
	Raw      []string      `koanf:"raw" help:"spans that raw sets are merged to, ascending" needs:"interval"`
	Minute   []string      `koanf:"1m" help:"spans that 1m sets are merged to" needs:"interval"`
	Five     []string      `koanf:"5m" help:"spans that 5m sets are merged to" needs:"interval"`
	Hour     []string      `koanf:"1h" help:"spans that 1h sets are merged to" needs:"interval"`
}

// DefaultCompactConfig merges raw sets to 2 hours and a day, 1m to a day, 5m to 7 days, 1h to 30.
func DefaultCompactConfig() CompactConfig {
	d := compact.DefaultSettings()
	return CompactConfig{
		Interval: 10 * time.Minute, After: d.After, Group: d.Group, Object: config.Bytes(d.ObjectBytes), Memory: config.Bytes(d.MaxBytes), Back: 3,
		Raw: []string{"2h", "24h"}, Minute: []string{"24h"}, Five: []string{"168h"}, Hour: []string{"720h"},
	}
}

// Validate checks ranges.
func (c CompactConfig) Validate() error {
	if c.Interval < 0 || c.Back < 1 {
		return errors.New("compact: interval must not be negative, back must be greater than 0")
	}
	s, err := c.settings()
	if err != nil {
		return err
	}
	return s.Validate()
}

func (c CompactConfig) settings() (compact.Settings, error) {
	s := compact.DefaultSettings()
	s.After, s.Group, s.ObjectBytes, s.MaxBytes = c.After, c.Group, int64(c.Object), int64(c.Memory)
	s.Spans = map[timegrid.Resolution][]uint16{}
	for res, spans := range map[timegrid.Resolution][]string{timegrid.Raw: c.Raw, timegrid.OneMinute: c.Minute, timegrid.FiveMinutes: c.Five, timegrid.OneHour: c.Hour} {
		for _, text := range spans {
			d, err := time.ParseDuration(text)
			if err != nil || d%time.Hour != 0 || d < 0 || d > catalog.MaxSpan*time.Hour {
				return s, fmt.Errorf("compact: span %q of %s: whole hours, at most %dh", text, res, catalog.MaxSpan)
			}
			s.Spans[res] = append(s.Spans[res], uint16(d/time.Hour))
		}
	}
	return s, nil
}

// compactions is a worker's side of compaction and retention.
type compactions struct {
	s        *Service
	settings compact.Settings
	c        *compact.Compactor
	r        *compact.Retainer
	looks    map[timegrid.Resolution]*compact.Scanner
	looked   map[timegrid.Resolution]time.Time
	// retained resolutions: when, to which hour, and when from the beginning of time.
	retained map[timegrid.Resolution]retained
	// released compactions of a resolution, as long as looks find them.
	released map[timegrid.Resolution]map[catalog.Name]bool
}

// compactMetrics count what merging and retention did. The guide lists them.
type compactMetrics struct {
	compactions *prometheus.CounterVec // resolution
	sources     *prometheus.CounterVec // resolution
	bytes       *prometheus.CounterVec // resolution, of: sources, objects
	failures    *prometheus.CounterVec // what
	expired     *prometheus.CounterVec // resolution
	frames      prometheus.Counter
}

func newCompactMetrics(reg prometheus.Registerer) *compactMetrics {
	const p = "lightmetrics_rollup_"
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + name, Help: help}, labels)
	}
	m := &compactMetrics{
		compactions: vec("compactions_total", "Compactions that this worker committed, by resolution.", "resolution"),
		sources:     vec("compacted_blocks_total", "Blocks that point at a compaction by this worker, by resolution.", "resolution"),
		bytes:       vec("compaction_bytes_total", "Bytes of what compactions merged (sources) and what they wrote (objects), by resolution.", "resolution", "of"),
		failures:    vec("maintenance_failures_total", "Looks of compaction, retention and the removal of raw frames that failed and are tried again.", "what"),
		expired:     vec("expired_blocks_total", "Blocks that retention removed, by resolution.", "resolution"),
		frames:      prometheus.NewCounter(prometheus.CounterOpts{Name: p + "removed_raw_frames_total", Help: "Accepted batches whose raw frames retention removed."}),
	}
	reg.MustRegister(m.compactions, m.sources, m.bytes, m.failures, m.expired, m.frames)
	return m
}

// newCompactions is called once the authority is known.
func (s *Service) newCompactions() (*compactions, error) {
	st, err := s.cfg.Compact.settings()
	if err != nil {
		return nil, err
	}
	m := &compactions{
		s: s, settings: st, looks: map[timegrid.Resolution]*compact.Scanner{}, looked: map[timegrid.Resolution]time.Time{},
		retained: map[timegrid.Resolution]retained{}, released: map[timegrid.Resolution]map[catalog.Name]bool{},
	}
	m.c, err = compact.NewCompactor(compact.Config{Store: s.store, Publisher: s.publisher, AuthorityID: s.cfg.AuthorityID, Settings: st})
	if err != nil {
		return nil, err
	}
	m.r, err = compact.NewRetainer(compact.RetainConfig{Store: s.store, Publisher: s.publisher, AuthorityID: s.cfg.AuthorityID, WorkerID: s.cfg.ID, Now: s.now})
	return m, err
}

// maintain compacts and removes what is due, until ctx ends.
func (s *Service) maintain(ctx context.Context) error {
	m, err := s.newCompactions()
	if err != nil {
		return err
	}
	for {
		if err := (run.WallClock{}).Sleep(ctx, maintainEvery); err != nil {
			return err
		}
		for _, what := range []struct {
			name string
			do   func(context.Context) error
		}{{"compaction", m.compact}, {"retention", m.retain}} {
			if err := what.do(ctx); err != nil && ctx.Err() == nil {
				s.m.compact.failures.WithLabelValues(what.name).Inc()
				s.log.Warn("maintenance failed; it is tried again", "what", what.name, "error", err)
			}
		}
	}
}

// maintainEvery is how often the clock is asked whether something is due.
const maintainEvery = 10 * time.Second

// compact looks at the resolutions that are due.
func (m *compactions) compact(ctx context.Context) error {
	if m.s.cfg.Compact.Interval == 0 {
		return nil
	}
	var failed []error
	for _, res := range timegrid.Resolutions() {
		spans := m.settings.Spans[res]
		now := m.s.now()
		if len(spans) == 0 || now.Sub(m.looked[res]) < m.wait(spans[0]) {
			continue
		}
		if err := m.window(ctx, res, now); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", res, err))
			continue
		}
		m.looked[res] = now
	}
	return errors.Join(failed...)
}

// wait between two looks: a part of the shortest span.
func (m *compactions) wait(span uint16) time.Duration {
	return max(min(time.Duration(span)*time.Hour/8, 24*time.Hour), m.s.cfg.Compact.Interval)
}

// resolution compacts what the groups of owned shards have.
func (m *compactions) window(ctx context.Context, res timegrid.Resolution, now time.Time) error {
	fences := m.s.groups(m.settings)
	if len(fences) == 0 {
		return nil
	}
	l := m.looks[res]
	if l == nil {
		l = compact.NewScanner(m.s.store, m.s.cfg.AuthorityID)
		m.looks[res] = l
	}
	spans := m.settings.Spans[res]
	back := time.Duration(m.s.cfg.Compact.Back) * time.Duration(spans[len(spans)-1]) * time.Hour
	from, to := timegrid.HourOf(now.Add(-back).UnixMilli()), timegrid.HourOf(now.Add(-m.settings.After).UnixMilli())
	seen, err := l.Scan(ctx, res, from, to, func(id shard.ID) bool { _, ok := fences[m.settings.Owner(id)]; return ok })
	if err != nil {
		return err
	}
	if seen.Skipped > 0 {
		m.s.log.Warn("hours are not merged: a record can't be read", "resolution", res, "hours", seen.Skipped)
	}
	var failed []error
	released := map[catalog.Name]bool{}
	for _, n := range seen.Unneeded() {
		if !m.released[res][n] {
			if err := m.s.publisher.Release(ctx, n); err != nil {
				return err
			}
		}
		released[n] = true
	}
	m.released[res] = released
	for first, fence := range fences {
		for _, c := range m.settings.Choose(res, seen.Blocks, first, now) {
			if err := m.one(ctx, c, fence); err != nil {
				failed = append(failed, err)
			}
			if ctx.Err() != nil || len(failed) > maxCompactFailures {
				return errors.Join(failed...)
			}
		}
	}
	return errors.Join(failed...)
}

const maxCompactFailures = 3

// one compacts a candidate, when there is room for a job.
func (m *compactions) one(ctx context.Context, c compact.Candidate, fence uint64) error {
	if err := m.s.slots.Acquire(ctx, 1); err != nil {
		return err
	}
	defer m.s.slots.Release(1)
	r, err := m.c.Compact(ctx, c, fence)
	w, counts := c.Name.Resolution.String(), m.s.m.compact
	counts.sources.WithLabelValues(w).Add(float64(r.Turned))
	if r.Created {
		counts.compactions.WithLabelValues(w).Inc()
		counts.bytes.WithLabelValues(w, "sources").Add(float64(c.Bytes))
		for _, o := range r.Block.Objects {
			counts.bytes.WithLabelValues(w, "objects").Add(float64(o.ChunkBytes + o.IndexBytes))
		}
		m.s.log.Info("merged", "compaction", r.Block.Name.Key(), "sources", len(r.Block.Sources), "objects", len(r.Block.Objects), "samples", r.Block.Counts.Samples)
	}
	if errors.Is(err, publish.ErrConflict) || errors.Is(err, publish.ErrAborted) || errors.Is(err, compact.ErrGivenUp) {
		m.s.log.Info("a compaction is another's, or given up; the next look has what is left", "compaction", c.Name.SlotPrefix(), "error", err)
		return nil
	}
	return err
}

// groups are the shards that begin a group and are owned now, with their fences.
func (s *Service) groups(st compact.Settings) map[shard.ID]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[shard.ID]uint64{}
	for id, status := range s.status {
		if st.Owner(id) == id {
			out[id] = status.Fence
		}
	}
	return out
}
