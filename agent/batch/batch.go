// Package batch makes frames of scrapes: it collects several scrapes into one batch,
// so that series with equal timestamps become dense matrices, and appends the
// frame to the queue, where the batch gets its identity. What is in memory here has no
// identity yet; a crash loses it and leaves no gap.
package batch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/pkg/config"
	"lightmetrics.dev/lightmetrics/pkg/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Config bounds a batch; whichever bound is reached first closes it.
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
	// Skip takes the numbers of records that Append refused.
	Skip(records uint64) error
}

// Batcher is one loop's state; use Run.
type Batcher struct {
	cfg      Config
	resource []frame.Label
	queue    Appender
	drop     func(reason string, samples int)
	queued   func(queue.Entry)
	log      *slog.Logger

	builder *frame.Builder
	encoder *frame.Encoder
	ids     map[*input.Series]frame.SeriesID
	helps   *helps
	bytes   int
	// first and last time of the batch's samples, Unix nanoseconds.
	first, last int64
}

// recordBytes is more than a record costs in any encoding of the columns.
const recordBytes = 20

// New makes a Batcher whose batches carry the resource labels. drop counts samples
// that are not queued; queued is told of each batch that is.
func New(cfg Config, resource []frame.Label, q Appender, drop func(string, int), queued func(queue.Entry), log *slog.Logger) (*Batcher, error) {
	b := &Batcher{
		cfg: cfg, resource: resource, queue: q, drop: drop, queued: queued, log: log,
		builder: frame.NewBuilder(), encoder: frame.NewEncoder(frame.Options{}),
		ids: map[*input.Series]frame.SeriesID{}, helps: newHelps(),
	}
	if err := b.reset(); err != nil {
		return nil, fmt.Errorf("resource labels: %w", err)
	}
	return b, nil
}

// Run takes scrapes until ctx ends, then takes what still waits in the channel, and
// queues the unfinished batch.
func (b *Batcher) Run(ctx context.Context, in <-chan input.Scrape) error {
	timer := time.NewTimer(b.cfg.MaxAge)
	timer.Stop()
	defer timer.Stop()
	take := func(s input.Scrape) {
		empty := b.builder.Records() == 0
		b.add(s)
		switch n := b.builder.Records(); {
		case n == 0:
			timer.Stop()
		case empty:
			timer.Reset(b.cfg.MaxAge)
		}
	}
	for {
		select {
		case s := <-in:
			take(s)
		case <-timer.C:
			b.flush()
		case <-ctx.Done():
			for {
				select {
				case s := <-in:
					take(s)
					continue
				default:
				}
				b.flush()
				return nil
			}
		}
	}
}

func (b *Batcher) add(s input.Scrape) {
	for _, sample := range s.Samples {
		if b.builder.Records() >= b.cfg.MaxRecords || b.bytes >= int(b.cfg.MaxBytes) || b.jumps(sample.Time) {
			b.flush()
		}
		id, ok := b.ids[sample.Series]
		if !ok {
			var err error
			id, err = b.builder.AddSeries(sample.Series.Labels, sample.Series.Type, sample.Series.Unit, sample.Series.Start)
			if err != nil {
				b.log.Debug("series refused", "source", s.Source, "err", err)
				b.drop(DropSeries, 1)
				continue
			}
			b.ids[sample.Series] = id
			b.helps.add(b.builder, sample.Series)
			b.bytes += seriesBytes(sample.Series)
		}
		if err := b.builder.Append(id, sample.Time, sample.Value); err != nil {
			b.drop(DropOrder, 1)
			continue
		}
		b.bytes += recordBytes
		if b.builder.Records() == 1 {
			b.first, b.last = sample.Time, sample.Time
		}
		b.first, b.last = min(b.first, sample.Time), max(b.last, sample.Time)
	}
}

// maxSpan is well below what collectors take.
const maxSpan = 12 * time.Hour

// jumps reports whether a sample at t (Unix nanoseconds) lies too far from the others of
// the batch: the clock was set, or a target makes up its times. It begins a new batch, or
// collectors would refuse the whole.
func (b *Batcher) jumps(t int64) bool {
	return b.builder.Records() > 0 && uint64(max(b.last, t))-uint64(min(b.first, t)) > uint64(maxSpan)
}

func seriesBytes(s *input.Series) int {
	n := 32 + len(s.Unit)
	for _, l := range s.Labels {
		n += len(l.Name) + len(l.Value) + 12
	}
	return n
}

// flush queues the batch, or counts it as dropped.
func (b *Batcher) flush() {
	n := b.builder.Records()
	if n == 0 {
		return
	}
	failpoint.Hit("agent.batch.close.before")
	entries, err := b.queue.Append(queue.Part{Records: uint64(n), Encode: b.encode})
	failpoint.Hit("agent.batch.close.after")
	switch {
	case errors.Is(err, queue.ErrFull):
		b.log.Warn("queue is full: dropped new samples", "samples", n, "error", err)
		b.refused(DropQueueFull, n)
	case err != nil:
		b.log.Error("could not queue a batch: dropped its samples", "samples", n, "error", err)
		b.refused(DropQueue, n)
	default:
		b.queued(entries[0])
	}
	b.helps.next(err == nil)
	if err := b.reset(); err != nil {
		b.log.Error("batch: resource labels", "err", err) // New took the same labels
	}
}

// refused counts samples that the queue did not take. Their numbers are skipped, so that
// everybody who asks the ledger sees that they are missing.
func (b *Batcher) refused(reason string, n int) {
	b.drop(reason, n)
	if err := b.queue.Skip(uint64(n)); err != nil {
		b.log.Error("could not note dropped samples; the next batch that is queued does", "samples", n, "error", err)
	}
}

func (b *Batcher) encode(id identity.Batch) ([]byte, error) {
	batch, err := b.builder.Build(id.BootOf(), id.SeqStart)
	if err != nil {
		return nil, err
	}
	return b.encoder.Encode(nil, batch)
}

func (b *Batcher) reset() error {
	b.builder.Reset()
	clear(b.ids)
	b.bytes = 0
	return b.builder.SetResource(b.resource...)
}
