package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Bounds of one Append.
const (
	MaxAppendSamples = 100_000
	// maxAppendBytes is of the estimate that also closes frames.
	maxAppendBytes = 32 << 20
)

// Committer is the Append side of an input.Sink. Calls that wait at the same time share
// frames and one fsync (group commit): the more callers, the larger the frames.
type Committer struct {
	cfg      Config
	resource []series.Label
	queue    Appender
	queued   func(queue.Entry)

	// checks are frames in which samples are tried before they join a group.
	checks sync.Pool

	mu   sync.Mutex
	next *group // collects calls; nil: the next call begins one

	// writing holds a token while a call writes its group, for all the calls in it.
	writing chan struct{}
	// frames, encoder and helps belong to the call that holds writing. They are reused, since an
	// encoder is large.
	frames  []*openFrame
	encoder *frame.Encoder
	helps   *helps
}

// group are calls that are written together.
type group struct {
	batches []input.Batch
	samples int
	bytes   int
	// done is closed when errs has the answer of each call; nil is for all of them nil.
	done chan struct{}
	errs []error
}

// NewCommitter makes a Committer whose frames carry the resource labels. queued is called
// with each frame that is on disk.
func NewCommitter(cfg Config, resource []series.Label, q Appender, queued func(queue.Entry)) (*Committer, error) {
	encoder, helps := frame.NewEncoder(frame.Options{}), newHelps()
	o, err := newOpenFrame(resource, encoder, helps)
	if err != nil {
		return nil, fmt.Errorf("resource labels: %w", err)
	}
	c := &Committer{cfg: cfg, resource: resource, queue: q, queued: queued, writing: make(chan struct{}, 1), frames: []*openFrame{o}, encoder: encoder, helps: helps}
	c.checks.New = func() any {
		o, _ := newOpenFrame(resource, nil, nil) // the same labels were taken above
		return o
	}
	return c, nil
}

// Append implements input.Sink.
func (c *Committer) Append(ctx context.Context, b input.Batch) error {
	if len(b.Samples) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	o, bytes, err := c.check(b)
	defer func() { c.putBack(o) }()
	if err != nil {
		return err
	}
	for {
		g, at, first := c.join(b, bytes)
		if first {
			c.write(g, o)
			return g.answer(at)
		}
		c.putBack(o) // another call makes the frame, and this one may wait for long
		o = nil
		switch {
		case at < 0: // it is full: wait until it is written
			select {
			case <-g.done:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case <-g.done:
			return g.answer(at)
		case <-ctx.Done():
			return fmt.Errorf("the samples may have been queued: %w", ctx.Err())
		}
	}
}

func (g *group) answer(at int) error {
	if g.errs == nil {
		return nil
	}
	return g.errs[at]
}

// join adds a call to the group that collects now and gives its index in it; -1 when the group is
// full. first: the call began the group and must write it.
func (c *Committer) join(b input.Batch, bytes int) (g *group, at int, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g = c.next
	if g == nil {
		g = &group{done: make(chan struct{})}
		c.next, first = g, true
	}
	if !first && (g.samples+len(b.Samples) > MaxAppendSamples || g.bytes+bytes > maxAppendBytes) {
		return g, -1, false
	}
	g.batches = append(g.batches, b)
	g.samples += len(b.Samples)
	g.bytes += bytes
	return g, len(g.batches) - 1, first
}

// check tries the samples in a frame of their own and gives the estimate of their bytes. A call
// with bad samples is refused here, before it can spoil the frame that it would share with others.
// It returns the frame where it has all samples as fill would put them into one; otherwise nil.
func (c *Committer) check(b input.Batch) (_ *openFrame, bytes int, err error) {
	if len(b.Samples) > MaxAppendSamples {
		return nil, 0, fmt.Errorf("%w: %d, at most %d", input.ErrTooLarge, len(b.Samples), MaxAppendSamples)
	}
	o, whole := c.checks.Get().(*openFrame), true
	defer func() {
		if err != nil || !whole {
			c.putBack(o)
		}
	}()
	var rejected []input.Rejection
	for i, s := range b.Samples {
		whole = whole && o.takes(s.Time, c.cfg)
		id, err := o.series(s.Series)
		if err == nil {
			err = o.append(id, s)
		}
		if err == nil && sampleBytes(s)+o.table[id].bytes > int(c.cfg.MaxBytes) {
			err = &frame.Error{Reason: frame.TooLarge, Detail: fmt.Sprintf("the sample alone has more than %s", c.cfg.MaxBytes)}
		}
		if err != nil {
			rejected = append(rejected, input.Rejection{Index: i, Err: err})
		}
		if o.bytes > maxAppendBytes {
			return nil, 0, fmt.Errorf("%w: more than %d bytes", input.ErrTooLarge, maxAppendBytes)
		}
	}
	if rejected != nil {
		return nil, 0, &input.RejectedError{Samples: rejected}
	}
	if bytes = o.bytes; !whole {
		return nil, bytes, nil
	}
	return o, bytes, nil
}

// putBack ends the use of a frame of check; it may be nil.
func (c *Committer) putBack(o *openFrame) {
	if o != nil {
		_ = o.reset() // its labels were taken before
		o.encoder = nil
		c.checks.Put(o)
	}
}

// write writes a group. It waits first until the group before is written; other calls join
// meanwhile, which is what makes the groups larger under load. checked is the frame of the call that began the
// group, or nil.
func (c *Committer) write(g *group, checked *openFrame) {
	c.writing <- struct{}{}
	defer func() { <-c.writing }()
	c.mu.Lock()
	c.next = nil
	c.mu.Unlock()
	defer close(g.done)
	if len(g.batches) > 1 {
		checked = nil
	}
	err := c.commit(g.batches, checked)
	if err == nil {
		return
	}
	g.errs = make([]error, len(g.batches))
	for i := range g.batches {
		// A frame that cannot be encoded, or that fits into no queue of this size, is the fault of
		// one call, so each is tried alone. A full disk would refuse each of them too.
		if g.errs[i] = err; len(g.batches) > 1 && (isFrameError(err) || errors.Is(err, input.ErrTooLarge)) {
			g.errs[i] = c.commit(g.batches[i:i+1], nil)
		}
	}
}

func isFrameError(err error) bool {
	var fe *frame.Error
	return errors.As(err, &fe)
}

// commit queues the batches as one or several frames, all or none of them. checked, unless it is nil, is the frame with
// all their samples.
func (c *Committer) commit(batches []input.Batch, checked *openFrame) (err error) {
	n := 0
	defer func() {
		c.helps.endFrame(err == nil)
		for _, o := range c.frames[:n] {
			_ = o.reset() // its labels were taken before
		}
		c.frames = c.frames[:1] // the memory of a large group is not kept
	}()
	var parts []queue.Part
	if checked != nil {
		checked.encoder = c.encoder
		for _, s := range checked.order {
			c.helps.add(checked.builder, s)
		}
		parts = append(parts, checked.part())
	} else {
		if n, err = c.fill(batches); err != nil {
			return err
		}
		for _, o := range c.frames[:n] {
			parts = append(parts, o.part())
		}
	}
	entries, err := c.queue.Append(parts...)
	if errors.Is(err, queue.ErrTooLarge) {
		err = fmt.Errorf("%w: %w", input.ErrTooLarge, err)
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		c.queued(e)
	}
	return nil
}

// fill adds the samples to c.frames and gives the number of frames used. Times of a series must
// rise within a frame, so a sample that is not later than one of another call begins a new frame.
func (c *Committer) fill(batches []input.Batch) (n int, err error) {
	n = 1
	for _, b := range batches {
		for _, s := range b.Samples {
			o := c.frames[n-1]
			if o.takes(s.Time, c.cfg) {
				if err := add(o, s); err == nil {
					continue
				} else if o.records() == 0 {
					return n, err
				}
			}
			if n++; n > len(c.frames) {
				o, err := newOpenFrame(c.resource, c.encoder, c.helps)
				if err != nil {
					return n - 1, err
				}
				c.frames = append(c.frames, o)
			}
			if err := add(c.frames[n-1], s); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func add(o *openFrame, s input.Sample) error {
	id, err := o.series(s.Series)
	if err != nil {
		return err
	}
	return o.append(id, s)
}
