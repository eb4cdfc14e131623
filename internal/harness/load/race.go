package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// race sends one identity through two collectors at the same time, with equal bytes or
// with other ones: the history shows whether the answers agree.
func (x *sender) race(ctx context.Context, id identity.Batch, body []byte, at time.Time, value float64) error {
	otherBody, otherValue := body, value
	if x.rnd.IntN(2) == 0 {
		otherValue = value + 5000
		var err error
		if otherBody, err = Frame(x.s.Boot, Metric, id.SeqStart, x.f.o.Rows, at, otherValue); err != nil {
			return err
		}
	}
	if x.other == nil {
		x.other = x.newSender(x.s.Boot.Boot, x.s.next+1, 2*x.i+1)
	}
	type answer struct {
		status string
		err    error
	}
	second := make(chan answer, 1)
	// In the wait group of the fleet, so that Stop waits for this call too.
	x.f.wg.Go(func() {
		st, err := outcomeOf(x.other.Send(ctx, otherBody))
		second <- answer{st, err}
	})
	a, err := outcomeOf(x.s.Send(ctx, body))
	b := <-second
	if err != nil || b.err != nil {
		return fmt.Errorf("%s, raced for: %w", id, errors.Join(err, b.err))
	}
	conflicts := 0
	// With equal bytes nobody may see a conflict, and with other bytes exactly one sender must.
	switch {
	case a != Conflict && b.status == Conflict && otherValue != value:
		x.f.acked(id, body, value, int(id.Count()))
		conflicts = 1
	case a == Conflict && b.status != Conflict && otherValue != value:
		x.f.acked(id, otherBody, otherValue, int(id.Count()))
		conflicts = 1
	case a != Conflict && b.status != Conflict && otherValue == value:
		x.f.acked(id, body, value, int(id.Count()))
	default:
		return fmt.Errorf("%s, raced for: answered %s and %s (equal bytes: %v)", id, a, b.status, otherValue == value)
	}
	x.f.mu.Lock()
	defer x.f.mu.Unlock()
	x.f.sent.Races++
	x.f.sent.Conflicts += conflicts
	return nil
}
