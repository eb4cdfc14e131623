package events

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Source of what a queue brings, in metrics.
const fromQueue = "queue"

// QueuedMessage is one message of a queue.
type QueuedMessage struct {
	ID string
	// Receipt names this delivery of it to Delete.
	Receipt string
	Body    string
	// Sent is when it came into the queue; zero where the queue does not say.
	Sent time.Time
}

// MessageQueue is what a Consumer needs of a queue. Errors name operation and queue.
type MessageQueue interface {
	// Receive waits for messages, at most ten, and hides them from others for a while; none is no error.
	Receive(context.Context) ([]QueuedMessage, error)
	// Delete removes deliveries, at most ten, and says how many were not.
	Delete(context.Context, []QueuedMessage) (failed int, err error)
	// Length is about how many messages it has that nobody has received.
	Length(context.Context) (int, error)
}

const (
	// firstDelay and maxDelay bound the waits after a request that failed.
	firstDelay = 500 * time.Millisecond
	maxDelay   = 30 * time.Second
	// deleteTimeout bounds a delete, also that of messages that were taken before a shutdown.
	deleteTimeout = 10 * time.Second
	// measureEvery is how often the queue is asked for its length.
	measureEvery = time.Minute
)

// Consumer takes the messages of a queue. A message is deleted once it was given on, so that of a process that dies in between it is delivered
// again. Any number of consumers may share a queue; then each message goes to one of them.
type Consumer struct {
	cfg   Queue
	queue MessageQueue
	to    *Receiver

	mu      sync.Mutex
	failing time.Time // since when requests fail; zero while they don't
	age     time.Duration
	length  int
}

// NewConsumer makes a Consumer, and shows its state as metrics.
func NewConsumer(cfg Queue, q MessageQueue, to *Receiver) *Consumer {
	c := &Consumer{cfg: cfg, queue: q, to: to}
	to.d.Metrics.follow(c)
	return c
}

// Run consumes until ctx ends.
func (c *Consumer) Run(ctx context.Context) error {
	g := run.NewGroup(ctx)
	for i := range c.cfg.Receivers {
		g.Go(fmt.Sprintf("receiver %d", i), c.receive)
	}
	g.Go("length", c.measure)
	return g.Wait()
}

// receive takes batches until ctx ends.
func (c *Consumer) receive(ctx context.Context) error {
	backoff := run.NewBackoff(firstDelay, maxDelay)
	for {
		began := c.to.d.Now()
		ms, err := c.queue.Receive(ctx)
		if ctx.Err() != nil {
			return ctx.Err() // what was received is delivered again when its visibility ends
		}
		if err == nil {
			c.received(ms)
			err = c.handle(ctx, ms)
		}
		c.note("receive", err)
		var wait time.Duration
		switch {
		case err != nil:
			wait = backoff.Next()
			c.to.d.Log.Warn("the queue of events is tried again; polls find meanwhile what it tells of", "after", wait, "error", err)
		case len(ms) == 0 && c.to.d.Now().Sub(began) < c.cfg.Wait/2:
			// A server that doesn't wait for messages, although it was asked to.
			wait = time.Second
		}
		if err == nil {
			backoff.Reset()
		}
		if wait == 0 {
			continue
		}
		if err := run.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// handle gives messages on, and deletes those that are dealt with.
func (c *Consumer) handle(ctx context.Context, ms []QueuedMessage) error {
	done := make([]QueuedMessage, 0, len(ms))
	for _, m := range ms {
		_, err := c.to.Take(fromQueue, []byte(m.Body))
		if errors.Is(err, ErrUnknownMessage) {
			c.to.d.Log.Warn("a message that is no event of an object store", "message", name(m), "then", c.cfg.Unknown, "error", err)
			if c.cfg.Unknown == UnknownLeave {
				continue
			}
		}
		done = append(done, m)
	}
	if len(done) == 0 {
		return nil
	}
	// A shutdown does not interrupt the delete: the messages would only be delivered again.
	dctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	failed, err := c.queue.Delete(dctx, done)
	c.to.d.Metrics.deletes.WithLabelValues("failed").Add(float64(failed))
	if err == nil {
		c.to.d.Metrics.deletes.WithLabelValues("ok").Add(float64(len(done) - failed))
	}
	return err
}

// received notes how far the queue is behind.
func (c *Consumer) received(ms []QueuedMessage) {
	age := time.Duration(0)
	for _, m := range ms {
		if !m.Sent.IsZero() {
			age = max(age, c.to.d.Now().Sub(m.Sent))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.age = age
}

// measure asks for the length until ctx ends. Without the right to ask the queue is consumed all the same.
func (c *Consumer) measure(ctx context.Context) error {
	for {
		n, err := c.queue.Length(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			c.mu.Lock()
			c.length = n
			c.mu.Unlock()
		} else {
			c.to.d.Log.Warn("the length of the queue of events is not known", "error", err)
		}
		c.to.d.Metrics.requests.WithLabelValues("length", result(err)).Inc()
		if err := run.Sleep(ctx, measureEvery); err != nil {
			return err
		}
	}
}

// note notes how a request ended.
func (c *Consumer) note(op string, err error) {
	c.to.d.Metrics.requests.WithLabelValues(op, result(err)).Inc()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.failing = time.Time{}
	case c.failing.IsZero():
		c.failing = c.to.d.Now()
	}
}

func result(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}

// state is for metrics: for how long requests have failed, the age of the oldest message that was received last, and the length.
func (c *Consumer) state() (failing, age time.Duration, length int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.failing.IsZero() {
		failing = c.to.d.Now().Sub(c.failing)
	}
	return failing, c.age, c.length
}
