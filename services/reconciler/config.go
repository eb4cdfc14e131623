package reconciler

import (
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/internal/service/bucket"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/collect"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/fold"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/scrub"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/tail"
)

// Config of a reconciler. docs/guide/reconciler.md explains every setting.
type Config struct {
	service.Base
	bucket.Bucket

	Workers     int           `koanf:"workers" help:"manifests that are reconciled at once"`
	ItemTimeout time.Duration `koanf:"item_timeout" help:"longest time of one attempt at one manifest"`

	// Derived says where derived keys are. Nothing of this system reads them.
	Derived string `koanf:"derived" help:"where references to accepted batches by time and by blob are: segments, in the files of the journal alone, or objects as well, one by one for tools that list the bucket, five more requests a batch"`

	Journal JournalConfig   `koanf:"journal"`
	Scrub   scrub.Scrubbing `koanf:"scrub"`
	Queue   QueueConfig     `koanf:"queue"`
	Audit   AuditConfig     `koanf:"audit"`
	Repairs RepairsConfig   `koanf:"repairs"`
	Ledgers LedgersConfig   `koanf:"ledgers"`
	Watch   WatchConfig     `koanf:"watch"`

	// Region is the one that the bucket is of, where several regions accept batches.
	Region      claims.Region    `koanf:"region" help:"name of the region that the bucket is of, as the coordinators' identity.regions has it; empty: no regions"`
	Coordinator LinearizerConfig `koanf:"coordinator"`
	Claims      ClaimsConfig     `koanf:"claims"`

	GC collect.Collecting `koanf:"gc"`

	Events EventsConfig `koanf:"events"`
}

// Values of Derived.
const (
	DerivedSegments = "segments"
	DerivedObjects  = "objects"
)

// JournalConfig is for following the journal, and for keeping it small.
type JournalConfig struct {
	tail.Polling
	fold.Folding
}

// QueueConfig bounds the queue of manifests.
type QueueConfig struct {
	Capacity   int           `koanf:"capacity" help:"most manifests that wait, are being reconciled or wait for a retry; beyond it reading the journal waits"`
	MaxRetries int           `koanf:"max_retries" help:"most manifests that wait for a retry; more are dropped and found again later"`
	RetryBase  time.Duration `koanf:"retry_base" help:"wait before the first retry; it doubles with each"`
	RetryMax   time.Duration `koanf:"retry_max" help:"longest wait before a retry"`
}

// AuditConfig is for the audits of what was accepted against the journal.
type AuditConfig struct {
	AtStart  bool          `koanf:"at_start" help:"begin with a full audit"`
	Interval time.Duration `koanf:"interval" help:"time between two audits of what is new; 0 is never"`
	Period   time.Duration `koanf:"period" help:"time over which a full audit is spread, and after which the next one begins; 0 is never, but for the first one of a bucket that is older than its journal"`
	Rate     float64       `koanf:"rate" help:"most requests a second of audits: pages of 1,000 manifests, files of the journal, and manifests that are not in it"`
	Shards   int           `koanf:"shards" help:"parts of a full audit, which reconcilers share"`

	Inventory InventoryConfig `koanf:"inventory"`
}

// InventoryConfig says where S3 Inventory lists the bucket.
type InventoryConfig struct {
	Prefix string `koanf:"prefix" help:"where the inventories of the bucket stand, <destination prefix>/<bucket>/<configuration>/; full audits take their keys from the newest in place of listings; empty lists"`
	Bucket string `koanf:"bucket" help:"bucket that they are written to; empty is the bucket itself" needs:"prefix"`
}

// RepairsConfig is for the check of open repair records.
type RepairsConfig struct {
	Interval time.Duration `koanf:"interval" help:"time between two checks of the open repair records"`
	Timeout  time.Duration `koanf:"timeout" help:"longest time of one such check"`

	// Collectors and Replica are places that are asked for frames that are damaged or missing.
	Collectors []string         `koanf:"collectors" help:"gRPC addresses of collectors, which are asked for frames that are damaged or missing in the store: they have the latest in memory" check:"address"`
	Client     rpc.ClientConfig `koanf:"client" needs:"collectors"`
	Replica    s3.Config        `koanf:"replica" needs:"replica.bucket"`
}

// LedgersConfig is for the ledgers in memory and their snapshots.
type LedgersConfig struct {
	SaveInterval time.Duration `koanf:"save_interval" help:"time between two writes of the checkpoint of all ledgers"`
}

// WatchConfig bounds WatchJournal.
type WatchConfig struct {
	Buffer      int `koanf:"buffer" help:"hints that wait for one watcher; more end its watch with LAGGED"`
	MaxWatchers int `koanf:"max_watchers" help:"most watchers at once"`
}

// EventsConfig is for the events of the bucket: hints at segments, and manifests that should soon be in the journal.
type EventsConfig struct {
	events.Config
	CheckAfter time.Duration `koanf:"check_after" help:"time after the event of a manifest until the journal must have its batch; without one the reconciler enters it, as an audit would"`
	MaxWaiting int           `koanf:"max_waiting" help:"most manifests of events that wait for that; more are left to the audits"`
}

// DefaultConfig listens on loopback.
func DefaultConfig() Config {
	return Config{
		Base:        service.DefaultBase("127.0.0.1:4770", "127.0.0.1:4771"),
		Bucket:      bucket.Default(),
		Derived:     DerivedSegments,
		Scrub:       scrub.Default(),
		Workers:     64,
		ItemTimeout: 30 * time.Second,
		Queue:       QueueConfig{Capacity: 100_000, MaxRetries: 50_000, RetryBase: 100 * time.Millisecond, RetryMax: 15 * time.Second},
		Journal: JournalConfig{
			Polling: tail.Polling{Interval: 2 * time.Second, IdleInterval: 15 * time.Second, Timeout: 10 * time.Minute, Readers: 16},
			Folding: fold.Folding{Interval: time.Minute, Retention: 10 * time.Minute, FenceAfter: 15 * time.Minute, Sweep: 24 * time.Hour, MaxWaiting: 200_000},
		},
		Audit:   AuditConfig{Interval: 24 * time.Hour, Period: 30 * 24 * time.Hour, Rate: 50, Shards: 16},
		Repairs: RepairsConfig{Interval: 30 * time.Second, Timeout: 10 * time.Minute, Replica: s3.DefaultConfig()},
		Ledgers: LedgersConfig{SaveInterval: time.Minute},
		Watch:   WatchConfig{Buffer: 4096, MaxWatchers: 64},
		GC:      collect.Default(),
		Claims:  ClaimsConfig{Interval: 30 * time.Second, Age: time.Minute, TakeOver: 5 * time.Minute, Workers: 16},
		Events:  EventsConfig{Config: events.DefaultConfig(), CheckAfter: time.Minute, MaxWaiting: 100_000},
	}
}

// Check refuses what no start can open.
func (c Config) Check() error {
	err := c.Bucket.Check()
	if c.Repairs.Replica.Bucket != "" {
		if rerr := c.Repairs.Replica.Validate(); rerr != nil {
			err = errors.Join(err, fmt.Errorf("repairs.replica: %w", rerr))
		}
	}
	return err
}

// validateRegion checks what belongs to several regions.
func (c Config) validateRegion() error {
	var errs []error
	if (c.Region == "") != (len(c.Coordinator.Addresses) == 0) {
		errs = append(errs, errors.New("region, coordinator.addresses: need each other"))
	}
	if c.Region != "" {
		if err := c.Region.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("region: %w", err))
		}
	}
	if c.Claims.Interval <= 0 || c.Claims.Age <= 0 || c.Claims.TakeOver <= 0 || c.Claims.Workers < 1 {
		errs = append(errs, errors.New("claims.interval, claims.age, claims.take_over, claims.workers: must be greater than 0"))
	}
	return errors.Join(errs...)
}

// Validate checks ranges.
func (c Config) Validate() error {
	var errs []error
	positive := func(name string, ok bool) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: must be greater than 0", name))
		}
	}
	positive("workers", c.Workers > 0)
	positive("item_timeout", c.ItemTimeout > 0)
	positive("queue.capacity", c.Queue.Capacity > 0)
	positive("queue.max_retries", c.Queue.MaxRetries > 0)
	positive("queue.retry_base", c.Queue.RetryBase > 0)
	positive("queue.retry_max", c.Queue.RetryMax >= c.Queue.RetryBase)
	j := c.Journal
	positive("journal.poll_interval", j.Polling.Interval > 0)
	positive("journal.poll_timeout", j.Timeout > 0)
	positive("journal.readers", j.Readers > 0)
	positive("journal.fold_interval", j.Folding.Interval > 0)
	positive("journal.fence_after", j.FenceAfter > 0)
	positive("journal.sweep_interval", j.Sweep > 0)
	positive("journal.max_waiting", j.MaxWaiting > 0)
	positive("audit.rate", c.Audit.Rate > 0)
	if c.GC.Inventory && c.Audit.Inventory.Prefix == "" {
		errs = append(errs, errors.New("gc.inventory: needs audit.inventory.prefix"))
	}
	positive("events.check_after", c.Events.CheckAfter > 0)
	positive("events.max_waiting", c.Events.MaxWaiting > 0)
	if p := c.Audit.Inventory.Prefix; p != "" && p[len(p)-1] != '/' || p == "" && c.Audit.Inventory.Bucket != "" {
		errs = append(errs, fmt.Errorf("audit.inventory.prefix %q: must end in a slash, and be there where audit.inventory.bucket is", p))
	}
	if c.Audit.Shards < 1 || c.Audit.Shards > audit.MaxShards {
		errs = append(errs, fmt.Errorf("audit.shards: must be 1 to %d", audit.MaxShards))
	}
	positive("ledgers.save_interval", c.Ledgers.SaveInterval > 0)
	if j.Retention < 0 || j.IdleInterval < j.Polling.Interval {
		errs = append(errs, errors.New("journal.retention: must not be negative; journal.idle_interval: must be at least journal.poll_interval"))
	}
	positive("repairs.interval", c.Repairs.Interval > 0)
	positive("watch.buffer", c.Watch.Buffer > 0)
	positive("watch.max_watchers", c.Watch.MaxWatchers > 0)
	errs = append(errs, c.validateRegion())
	if c.Audit.Interval < 0 || c.Audit.Period < 0 {
		errs = append(errs, errors.New("audit.interval, audit.period: must not be negative"))
	}
	positive("repairs.timeout", c.Repairs.Timeout > 0)
	if c.Derived != DerivedSegments && c.Derived != DerivedObjects {
		errs = append(errs, fmt.Errorf("derived %q: want %s or %s", c.Derived, DerivedSegments, DerivedObjects))
	}
	return errors.Join(append(errs, c.Scrub.Validate(), c.GC.Validate(), c.Events.Config.Validate(), c.Base.Validate())...)
}
