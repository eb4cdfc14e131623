package gc

import (
	"context"
	"errors"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// ErrAwaited says that runs of the journal have not come to the epoch of what is condemned yet. Nothing was deleted; the markers
// stay, and a later execution goes on.
var ErrAwaited = errors.New("runs of the journal have not come to the epoch of what is condemned")

// announce tells collectors that read no markers what is condemned, and waits until all of them have come to know it. It is called
// after the markers are there, and before the proof: a call that relies on one of these blobs, and will be answered without having read
// its marker, has then observed its manifest or its quarantine record, so the proof finds that.
func (c *Collector) announce(ctx context.Context, condemned []Candidate, wait func(ctx context.Context, left, looks int) error) error {
	// Asked after the markers: if the log has not begun now, its first epoch has them.
	begun, err := c.epochs.Begun(ctx)
	if err != nil || !begun {
		return err
	}
	frames := make([]identity.Digest, len(condemned))
	for i := range condemned {
		frames[i] = condemned[i].SHA256
	}
	// Also those whose marker was there before: whoever made it may have died before it named them.
	epoch, err := c.epochs.Name(ctx, c.appender(), frames)
	if err != nil {
		return err
	}
	for looks := 0; ; looks++ {
		left, err := c.cross(ctx, epoch)
		if err != nil || left == 0 {
			return err
		}
		if wait == nil {
			return fmt.Errorf("%w: %d runs", ErrAwaited, left)
		}
		if err := wait(ctx, left, looks); err != nil {
			return err
		}
	}
}

func (c *Collector) appender() epochs.Writer {
	return epochs.Writer{Store: c.cfg.Store, By: c.cfg.By, At: max(c.cfg.Clock.Now().UnixNano(), 0)}
}

// cross asks the barrier of an epoch, and returns how many runs are left.
func (c *Collector) cross(ctx context.Context, epoch uint64) (left int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.passed >= epoch {
		return 0, nil
	}
	if c.barrier == nil || c.barrier.Epoch() < epoch {
		c.barrier = journal.NewBarrier(c.cfg.Store, c.cfg.AuthorityID, epoch)
	}
	left, err = c.barrier.Poll(ctx)
	if err == nil && left == 0 {
		c.passed, c.barrier = c.barrier.Epoch(), nil
	}
	return left, err
}

// Awaits is how many runs have not come to the epoch that an execution waits for; 0 if none waits.
func (c *Collector) Awaits(ctx context.Context) (int, error) {
	c.mu.Lock()
	b := c.barrier
	c.mu.Unlock()
	if b == nil {
		return 0, nil
	}
	return c.cross(ctx, b.Epoch())
}

// beginEpochs begins the log of epochs, and writes its first epoch: from then on collectors may rely on it.
func (c *Collector) beginEpochs(ctx context.Context, begun bool) error {
	if !begun {
		if err := c.epochs.Begin(ctx, c.appender()); err != nil {
			return fmt.Errorf("begin the log of epochs: %w", err)
		}
	}
	_, err := c.epochs.Name(ctx, c.appender(), nil)
	return err
}
