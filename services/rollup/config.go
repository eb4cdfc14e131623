package rollup

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/service/bucket"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/maintain"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/snapshots"
)

// Config of a rollup worker. docs/guide/rollup.md explains every setting.
type Config struct {
	service.Base
	bucket.Bucket

	Shards uint32 `koanf:"shards" help:"number of shards of the authority, fixed for ever by whoever says it first"`

	Coordinator coordinator.Config `koanf:"coordinator"`

	Schedule ScheduleConfig     `koanf:"schedule"`
	Follow   FollowConfig       `koanf:"follow"`
	Jobs     JobsConfig         `koanf:"jobs"`
	Chunks   ChunksConfig       `koanf:"chunks"`
	Snapshot snapshots.Settings `koanf:"snapshot"`
	Collect  CollectConfig      `koanf:"collect"`

	Compact   maintain.CompactConfig   `koanf:"compact"`
	Retention maintain.RetentionConfig `koanf:"retention"`
}

// ScheduleConfig says when an hour is rolled up.
type ScheduleConfig struct {
	FirstAfter time.Duration `koanf:"first_after" help:"time after an hour's end before its first generation; negative rolls up the current hour"`
	LateAfter  time.Duration `koanf:"late_after" help:"how long late batches gather, and the least time between two generations of an hour"`
	FoldAfter  time.Duration `koanf:"fold_after" help:"longest time that late batches stay in deltas before a new generation of their hours has them; 0 makes no deltas"`
	Ahead      time.Duration `koanf:"ahead" help:"hours that begin so much later than now are those of a clock that is wrong"`
	AheadAfter time.Duration `koanf:"ahead_after" help:"how long batches of such hours gather before they are rolled up"`
	RetryBase  time.Duration `koanf:"retry_base" help:"wait after a failed job; it doubles with each failure"`
	RetryMax   time.Duration `koanf:"retry_max" help:"longest wait after a failed job"`
}

// FollowConfig is how the acceptance journal is followed.
type FollowConfig struct {
	Interval   time.Duration `koanf:"interval" help:"time between two polls of the journal while there is something new"`
	Idle       time.Duration `koanf:"idle" help:"longest time between two polls of the journal that find nothing"`
	Gather     time.Duration `koanf:"gather" help:"how long a shard that begins to read the journal waits for others, so that it is read once for all of them"`
	MaxPending int           `koanf:"max_pending" help:"about the most batches that are remembered as not rolled up, all shards together, and as many that wait for busy shards; where it is reached, hours are rolled up early"`
	Recheck    time.Duration `koanf:"recheck" help:"time until batches that were forgotten for lack of room are looked for in the journal again"`
	// Watch is where reconcilers and collectors are; if empty, batches are found by polls only.
	Watch       []string         `koanf:"watch" help:"gRPC addresses of reconcilers and collectors to watch; while all are connected, polls are idle apart; empty relies on polls" check:"address"`
	WatchClient rpc.ClientConfig `koanf:"watch_client" needs:"watch"`
	// FramesMemory holds frames from their arrival until a live-state snapshot has packed them.
	FramesMemory config.Bytes  `koanf:"frames_memory" help:"memory for frames that collectors which are watched send when batches arrive, until live-state snapshots have packed them; 0 reads all frames from the store" needs:"watch"`
	FramesWait   time.Duration `koanf:"frames_wait" help:"how long a collector may take to send frames; those that it has not sent are read from the store later" needs:"watch"`
}

// JobsConfig bounds jobs.
type JobsConfig struct {
	Concurrency int           `koanf:"concurrency" help:"hours that are rolled up at once; each takes its memory"`
	Memory      config.Bytes  `koanf:"memory" help:"about how much memory one job may take for series, samples and chunks; a larger hour is built in parts"`
	MaxParts    uint32        `koanf:"max_parts" help:"parts that an hour is built in, each of them from all of its frames, before large agents are set aside"`
	Dir         string        `koanf:"dir" help:"where the chunks of an hour in parts wait for their publication; empty is the system's directory of temporary files"`
	Readers     int           `koanf:"readers" help:"frames of a job that are read at once"`
	Hold        time.Duration `koanf:"hold" help:"longest time between two checkpoints of a snapshot or a request to reprocess; after it another worker may take it"`
	TimeLimit   time.Duration `koanf:"time_limit" help:"longest time that a worker stays with one of these before it hands over; what is done is kept"`
	MaxFrame    config.Bytes  `koanf:"max_frame" help:"longest frame that is read"`
}

// ChunksConfig is the size of chunks.
type ChunksConfig struct {
	MetricSamples int `koanf:"metric_samples" help:"rows from which on a metric has chunks of its own; smaller ones share"`
	MaxSamples    int `koanf:"max_samples" help:"about the most rows of one chunk"`
}

// CollectConfig is the delayed collection of superseded and orphaned objects.
type CollectConfig struct {
	Interval time.Duration `koanf:"interval" help:"time between two polls of the delayed queue; 0 leaves it to other workers"`
	Grace    time.Duration `koanf:"grace" help:"time that a superseded block stays readable"`
}

// DefaultConfig listens on loopback, and knows of no coordinator: a worker alone.
func DefaultConfig() Config {
	alone := coordinator.DefaultConfig()
	alone.Addresses = nil
	base := service.DefaultBase("127.0.0.1:4775", "")
	base.DrainTimeout = 10 * time.Second
	return Config{
		Base:        base,
		Bucket:      bucket.Default(),
		Shards:      shard.Default,
		Coordinator: alone,
		Schedule:    ScheduleConfig{FirstAfter: 5 * time.Minute, LateAfter: 2 * time.Minute, FoldAfter: 6 * time.Hour, Ahead: time.Hour, AheadAfter: 65 * time.Minute, RetryBase: 2 * time.Second, RetryMax: 5 * time.Minute},
		Follow:      FollowConfig{Interval: 5 * time.Second, Idle: 30 * time.Second, Gather: 200 * time.Millisecond, MaxPending: 200_000, Recheck: time.Hour, FramesMemory: 128 << 20, FramesWait: 250 * time.Millisecond},
		Jobs:        JobsConfig{Concurrency: 1, Memory: 256 << 20, MaxParts: 64, Readers: 32, Hold: time.Minute, TimeLimit: 5 * time.Minute, MaxFrame: 4 << 20},
		Chunks:      ChunksConfig{MetricSamples: 4_000_000, MaxSamples: 64_000_000},
		Snapshot:    snapshots.DefaultSettings(),
		Collect:     CollectConfig{Interval: time.Minute, Grace: 15 * time.Minute},
		Compact:     maintain.DefaultCompactConfig(),
		Retention:   maintain.DefaultRetentionConfig(),
	}
}

// Validate checks ranges.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, ok bool) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: must be greater than 0", name))
		}
	}
	positive("schedule.late_after", c.Schedule.LateAfter > 0)
	if c.Schedule.FoldAfter < 0 {
		errs = append(errs, errors.New("schedule.fold_after: must not be negative"))
	}
	positive("schedule.ahead", c.Schedule.Ahead > 0)
	positive("schedule.ahead_after", c.Schedule.AheadAfter > 0)
	positive("schedule.retry_base", c.Schedule.RetryBase > 0)
	positive("schedule.retry_max", c.Schedule.RetryMax >= c.Schedule.RetryBase)
	positive("follow.interval", c.Follow.Interval > 0)
	positive("follow.max_pending", c.Follow.MaxPending > 0)
	positive("follow.recheck", c.Follow.Recheck > 0)
	if c.Follow.Idle < c.Follow.Interval {
		errs = append(errs, errors.New("follow.idle: must not be less than follow.interval"))
	}
	positive("follow.frames_wait", c.Follow.FramesWait > 0)
	if c.Follow.FramesMemory < 0 {
		errs = append(errs, errors.New("follow.frames_memory: must not be negative; 0 reads all frames from the store"))
	}
	if c.Follow.Gather < 0 {
		errs = append(errs, errors.New("follow.gather: must not be negative"))
	}
	positive("jobs.concurrency", c.Jobs.Concurrency > 0)
	positive("jobs.memory", c.Jobs.Memory > 0)
	if c.Jobs.MaxParts == 0 || c.Jobs.MaxParts > rollup.MaxParts {
		errs = append(errs, fmt.Errorf("jobs.max_parts: 1 to %d", rollup.MaxParts))
	}
	positive("jobs.readers", c.Jobs.Readers > 0)
	positive("jobs.hold", c.Jobs.Hold >= time.Second)
	positive("jobs.time_limit", c.Jobs.TimeLimit > 0)
	positive("jobs.max_frame", c.Jobs.MaxFrame > 0)
	positive("chunks.metric_samples", c.Chunks.MetricSamples > 0)
	positive("chunks.max_samples", c.Chunks.MaxSamples > 0)
	if c.Collect.Interval < 0 || c.Collect.Grace < 0 {
		errs = append(errs, errors.New("collect: must not be negative"))
	}
	if err := shard.CheckCount(c.Shards); err != nil {
		errs = append(errs, fmt.Errorf("shards: %w", err))
	}
	if len(c.Coordinator.Addresses) > 0 {
		if err := c.Coordinator.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("coordinator: %w", err))
		}
	}
	errs = append(errs, c.Snapshot.Validate(), c.Compact.Validate(), c.Retention.Validate(), c.Base.Validate())
	return errors.Join(errs...)
}
