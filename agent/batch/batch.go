// Package batch makes frames of samples and appends them to the queue, where they get their
// identities. The Batcher collects what sources read over some time, so that series with equal
// timestamps become dense matrices. Its samples have no identity yet: a crash loses them and
// leaves no gap of sequence numbers. The Committer writes at once, for callers that wait.
package batch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Config bounds a batch. The bound that is reached first closes it.
type Config struct {
	MaxRecords int           `koanf:"max_records" help:"records in a batch"`
	MaxBytes   config.Bytes  `koanf:"max_bytes" help:"bytes of a batch before compression, estimated; at most 3MiB"`
	MaxAge     time.Duration `koanf:"max_age" help:"age of a batch's first sample at which it is closed"`
}

// DefaultConfig closes a batch after 30 s or 10,000 records.
func DefaultConfig() Config {
	return Config{MaxRecords: 10_000, MaxBytes: 1 << 20, MaxAge: 30 * time.Second}
}

// Validate checks the bounds. 3 MiB leaves room for one more series below the frame's 4 MiB.
func (c Config) Validate() error {
	switch {
	case c.MaxRecords < 1 || c.MaxRecords > frame.DefaultLimits().Records:
		return fmt.Errorf("max_records %d: want 1 to %d", c.MaxRecords, frame.DefaultLimits().Records)
	case c.MaxBytes < 4<<10 || c.MaxBytes > 3<<20:
		return fmt.Errorf("max_bytes %s: want 4KiB to 3MiB", c.MaxBytes)
	case c.MaxAge <= 0:
		return fmt.Errorf("max_age %s: want more than 0", c.MaxAge)
	}
	return nil
}

// Reasons of dropped samples.
const (
	DropInputBusy = "input_busy" // the channel to the batcher was full
	DropQueueFull = "queue_full" // the disk's bound, or the disk
	DropQueue     = "queue_error"
	DropSeries    = "bad_series"   // labels that no collector would take
	DropOrder     = "out_of_order" // not later than the series' last sample of the batch
)

// Appender is the part of the queue that batches go to.
type Appender interface {
	Append(...queue.Part) ([]queue.Entry, error)
	// Skip uses up sequence numbers for records that Append refused.
	Skip(records uint64) error
}

// Batcher collects samples into batches and queues them, in one loop: Run.
type Batcher struct {
	cfg    Config
	queue  Appender
	drop   func(reason string, samples int)
	queued func(queue.Entry)
	log    *slog.Logger
	open   *openFrame
}

// New makes a Batcher whose batches carry the resource labels. drop counts samples
// that are not queued; queued is called with each batch that is.
func New(cfg Config, resource []series.Label, q Appender, drop func(string, int), queued func(queue.Entry), log *slog.Logger) (*Batcher, error) {
	o, err := newOpenFrame(resource, frame.NewEncoder(frame.Options{}), newHelps())
	if err != nil {
		return nil, fmt.Errorf("resource labels: %w", err)
	}
	return &Batcher{cfg: cfg, queue: q, drop: drop, queued: queued, log: log, open: o}, nil
}

// Run takes batches until ctx ends, then takes what still waits in the buffer, and
// queues the unfinished frame.
func (b *Batcher) Run(ctx context.Context, in *input.Buffer) error {
	timer := time.NewTimer(b.cfg.MaxAge)
	timer.Stop()
	defer timer.Stop()
	take := func(s input.Batch) {
		// Samples that the buffer dropped were read before s, so they get lower numbers.
		b.skip(in.TakeDropped())
		empty := b.open.records() == 0
		b.add(s)
		switch n := b.open.records(); {
		case n == 0:
			timer.Stop()
		case empty:
			// MaxAge counts from the first sample of a batch.
			timer.Reset(b.cfg.MaxAge)
		}
	}
	for {
		select {
		case s := <-in.C():
			take(s)
		case <-timer.C:
			b.flush()
		case <-ctx.Done():
			// The inputs have ended, so the buffer can be emptied: nothing is added any more.
			for {
				select {
				case s := <-in.C():
					take(s)
					continue
				default:
				}
				b.skip(in.TakeDropped())
				b.flush()
				return nil
			}
		}
	}
}

func (b *Batcher) add(s input.Batch) {
	for _, sample := range s.Samples {
		// The sample begins the next frame.
		if !b.open.takes(sample.Time, b.cfg) {
			b.flush()
		}
		id, err := b.open.series(sample.Series)
		if err != nil {
			b.log.Debug("series refused", "source", s.Source, "error", err)
			b.drop(DropSeries, 1)
			continue
		}
		if err := b.open.append(id, sample); err != nil {
			b.drop(DropOrder, 1)
			continue
		}
	}
}

// flush queues the batch, or counts it as dropped.
func (b *Batcher) flush() {
	n := b.open.records()
	if n == 0 {
		return
	}
	failpoint.Hit("agent.batch.close.before")
	entries, err := b.queue.Append(b.open.part())
	failpoint.Hit("agent.batch.close.after")
	switch {
	case errors.Is(err, queue.ErrFull):
		b.log.Warn("queue is full: dropped new samples", "samples", n, "error", err)
		b.countRefused(DropQueueFull, n)
	case err != nil:
		b.log.Error("could not queue a batch: dropped its samples", "samples", n, "error", err)
		b.countRefused(DropQueue, n)
	default:
		b.queued(entries[0])
	}
	b.open.helps.endFrame(err == nil)
	if err := b.open.reset(); err != nil {
		b.log.Error("batch: resource labels", "error", err) // New took the same labels
	}
}

// countRefused counts n samples that the queue did not take, and skips their numbers.
func (b *Batcher) countRefused(reason string, n int) {
	b.drop(reason, n)
	b.skip(uint64(n))
}

// skip uses up sequence numbers for n dropped samples, so that the loss is a gap in the agent's
// ledger, which every answer shows.
func (b *Batcher) skip(n uint64) {
	if n == 0 {
		return
	}
	if err := b.queue.Skip(n); err != nil {
		b.log.Error("could not note dropped samples; the next batch that is queued does", "samples", n, "error", err)
	}
}
