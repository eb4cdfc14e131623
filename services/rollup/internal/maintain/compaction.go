package maintain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/semaphore"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/metrics"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/status"
)

// CompactConfig is the merging of blocks into larger objects.
type CompactConfig struct {
	Interval time.Duration `koanf:"interval" help:"least time between two scans for blocks to merge; 0 merges none"`
	After    time.Duration `koanf:"after" help:"time after the end of a span before its blocks are merged; late batches should be there by then" needs:"interval"`
	Group    uint32        `koanf:"group" help:"most shards that are merged; the owner of the first of a group does it" needs:"interval"`
	Object   config.Bytes  `koanf:"object" help:"size from which on a merged chunk is ended" needs:"interval"`
	Memory   config.Bytes  `koanf:"memory" help:"most bytes of objects that are merged at once; about what it takes of memory" needs:"interval"`
	Back     int           `koanf:"back" help:"how many of the longest spans of a resolution a scan goes back" needs:"interval"`
	Raw      []string      `koanf:"raw" help:"spans that raw blocks are merged to, ascending, each a multiple of the one before" needs:"interval"`
	Minute   []string      `koanf:"1m" help:"spans that 1m blocks are merged to" needs:"interval"`
	Five     []string      `koanf:"5m" help:"spans that 5m blocks are merged to" needs:"interval"`
	Hour     []string      `koanf:"1h" help:"spans that 1h blocks are merged to" needs:"interval"`
}

// DefaultCompactConfig merges raw blocks to 2 hours and a day, the others to a day, then 5m to 7 days and 1h to 30.
func DefaultCompactConfig() CompactConfig {
	d := compact.DefaultSettings()
	return CompactConfig{
		Interval: 10 * time.Minute, After: d.After, Group: d.Group, Object: config.Bytes(d.ObjectBytes), Memory: config.Bytes(d.MaxBytes), Back: 3,
		Raw: []string{"2h", "24h"}, Minute: []string{"24h"}, Five: []string{"24h", "168h"}, Hour: []string{"24h", "720h"},
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

// CompactionDeps are what a Compaction is built over.
type CompactionDeps struct {
	Store       objstore.Store
	Publisher   *publish.Publisher
	Board       *status.Board
	Metrics     *metrics.Metrics
	Log         *slog.Logger
	Now         func() time.Time
	AuthorityID string
	// Slots bounds what takes the memory of a job, rollups included.
	Slots *semaphore.Weighted
	// Merged is told which hours, both included, have records that redirect to another block now. It may be nil.
	Merged func(from, to timegrid.Hour)
}

// Compaction merges the blocks of owned shards. It is not for concurrent use.
type Compaction struct {
	CompactionDeps
	cfg       CompactConfig
	settings  compact.Settings
	compactor *compact.Compactor
	scanners  map[timegrid.Resolution]*compact.Scanner
	scans     map[timegrid.Resolution]scan
	// released compactions of a resolution, as long as scans find them.
	released map[timegrid.Resolution]map[catalog.Name]bool
}

// scan is the last one of a resolution whose candidates were all merged.
type scan struct {
	at   time.Time
	full time.Time // the last one that went all the way back
	// groups that were scanned.
	groups map[shard.ID]uint64
	// left says that something was not merged that was due.
	left bool
}

// NewCompaction makes one that has scanned nothing yet.
func NewCompaction(c CompactConfig, d CompactionDeps) (*Compaction, error) {
	settings, err := c.settings()
	if err != nil {
		return nil, err
	}
	compactor, err := compact.NewCompactor(compact.Config{Store: d.Store, Publisher: d.Publisher, AuthorityID: d.AuthorityID, Settings: settings})
	if err != nil {
		return nil, err
	}
	return &Compaction{
		CompactionDeps: d, cfg: c, settings: settings, compactor: compactor,
		scanners: map[timegrid.Resolution]*compact.Scanner{}, scans: map[timegrid.Resolution]scan{},
		released: map[timegrid.Resolution]map[catalog.Name]bool{},
	}, nil
}

// Run merges what is due, until ctx ends.
func (c *Compaction) Run(ctx context.Context) error {
	return every(ctx, "compaction", c.Metrics, c.Log, c.Compact)
}

// Compact merges the blocks of resolutions that are due.
func (c *Compaction) Compact(ctx context.Context) error {
	if c.cfg.Interval == 0 {
		return nil
	}
	var failed []error
	for _, res := range timegrid.Resolutions() {
		fences, now := c.groups(), c.Now()
		from, full, ok := c.reach(res, fences, now)
		if !ok {
			continue
		}
		if full && c.scanners[res] != nil {
			c.scanners[res].Forget(from) // no scan goes further back
		}
		left, err := c.merge(ctx, res, fences, from, now)
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", res, err))
			continue
		}
		next := scan{at: now, full: c.scans[res].full, groups: fences, left: left}
		if full {
			next.full = now
		}
		c.scans[res] = next
	}
	return errors.Join(failed...)
}

// reach says from which hour on a resolution is scanned now, and whether that is as far as scans go; ok is false where no
// scan is due. Between two full scans only those spans are scanned that became due since: the others were merged, and late
// batches, which change them, can wait.
func (c *Compaction) reach(res timegrid.Resolution, groups map[shard.ID]uint64, now time.Time) (from timegrid.Hour, full, ok bool) {
	spans, last := c.settings.Spans[res], c.scans[res]
	if len(spans) == 0 || len(groups) == 0 || now.Sub(last.at) < c.wait(spans[0]) {
		return 0, false, false
	}
	longest := time.Duration(spans[len(spans)-1]) * time.Hour
	// Older spans were merged when their time was, or are left as they are: blocks of late
	// batches are too few to be worth a scan of all history.
	all := timegrid.HourOf(now.Add(-time.Duration(c.cfg.Back) * longest).UnixMilli())
	full = last.left || now.Sub(last.full) >= max(longest/fullParts, c.wait(spans[0]))
	for first := range groups {
		if _, known := last.groups[first]; !known {
			full = true
		}
	}
	if full {
		return all, true, true
	}
	from, ok = c.settings.DueSince(res, last.at, now)
	return max(from, all), false, ok
}

// fullParts is how many full scans come to the longest span of a resolution.
const fullParts = 7

// wait between two scans is a part of the shortest span: a span is merged once, so more scans
// would find nothing.
func (c *Compaction) wait(span uint16) time.Duration {
	return max(min(time.Duration(span)*time.Hour/8, 24*time.Hour), c.cfg.Interval)
}

// maxFailures of candidates end a scan: the store is down, or refuses.
const maxFailures = 3

// merge merges what the groups of owned shards have at a resolution from an hour on. left says that something that was due
// is not merged.
func (c *Compaction) merge(ctx context.Context, res timegrid.Resolution, fences map[shard.ID]uint64, from timegrid.Hour, now time.Time) (left bool, err error) {
	scanner := c.scanners[res]
	if scanner == nil {
		scanner = compact.NewScanner(c.Store, c.AuthorityID)
		c.scanners[res] = scanner
	}
	to := timegrid.HourOf(now.Add(-c.settings.After).UnixMilli())
	seen, err := scanner.Scan(ctx, res, from, to, func(id shard.ID) bool { _, ok := fences[c.settings.Owner(id)]; return ok })
	if err != nil {
		return false, err
	}
	if seen.Skipped > 0 {
		c.Log.Warn("hours are not merged: a record can't be read", "resolution", res, "hours", seen.Skipped)
	}
	if err := c.release(ctx, res, seen.Orphaned()); err != nil {
		return false, err
	}
	left = seen.Skipped > 0
	var failed []error
	for first, fence := range fences {
		for _, candidate := range c.settings.Choose(res, seen.Blocks, first, now) {
			merged, err := c.mergeOne(ctx, candidate, fence)
			if err != nil {
				failed = append(failed, err)
			}
			left = left || !merged
			if ctx.Err() != nil || len(failed) > maxFailures {
				return left, errors.Join(failed...)
			}
		}
	}
	return left, errors.Join(failed...)
}

// release puts compactions that no block points at on the delayed queue, each once.
func (c *Compaction) release(ctx context.Context, res timegrid.Resolution, unneeded []catalog.Name) error {
	released := map[catalog.Name]bool{}
	for _, n := range unneeded {
		// The queue has a grace period, in which every scan finds it again.
		if !c.released[res][n] {
			if err := c.Publisher.Release(ctx, n); err != nil {
				return err
			}
		}
		released[n] = true
	}
	c.released[res] = released
	return nil
}

// mergeOne makes one compaction, when there is room for a job. merged is false where the next scan is to try again.
func (c *Compaction) mergeOne(ctx context.Context, candidate compact.Candidate, fence uint64) (merged bool, err error) {
	if err := c.Slots.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer c.Slots.Release(1)
	r, err := c.compactor.Compact(ctx, candidate, fence)
	res := candidate.Name.Resolution.String()
	c.Metrics.Compacted.WithLabelValues(res).Add(float64(r.Redirected))
	if r.Redirected > 0 && c.Merged != nil {
		c.Merged(candidate.Name.Hour, candidate.Name.Hour+timegrid.Hour(candidate.Name.Span)-1)
	}
	if r.Created {
		c.Metrics.Compactions.WithLabelValues(res).Inc()
		c.Metrics.CompactionBytes.WithLabelValues(res, "sources").Add(float64(candidate.Bytes))
		for _, o := range r.Block.Objects {
			c.Metrics.CompactionBytes.WithLabelValues(res, "objects").Add(float64(o.ChunkBytes + o.IndexBytes))
		}
		c.Log.Info("merged", "compaction", r.Block.Name.Key(), "sources", len(r.Block.Sources), "objects", len(r.Block.Objects), "samples", r.Block.Counts.Samples)
	}
	if errors.Is(err, publish.ErrConflict) || errors.Is(err, publish.ErrAborted) || errors.Is(err, compact.ErrAborted) {
		c.Log.Info("a compaction is another's, or aborted; the next scan has what is left", "compaction", candidate.Name.SlotPrefix(), "error", err)
		return false, nil
	}
	return err == nil, err
}

// groups are the shards that begin a group and are owned now, with their fences: the owner of
// the first shard of a group merges for all of it.
func (c *Compaction) groups() map[shard.ID]uint64 {
	out := c.Board.Fences()
	for id := range out {
		if c.settings.Owner(id) != id {
			delete(out, id)
		}
	}
	return out
}
