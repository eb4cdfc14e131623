package rollup

import (
	"context"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// maxClockAhead of the store's time is taken for a clock that is right. Sets stay for a day
// at least, so nothing is removed early by more than a small part.
const maxClockAhead = 5 * time.Minute

// ClockError refuses to remove what is too old by a clock that the store does not confirm.
type ClockError struct{ Ahead time.Duration }

func (e *ClockError) Error() string {
	return fmt.Sprintf("this machine's clock is %v ahead of the store's: nothing is removed for its age", e.Ahead.Round(time.Second))
}

// clocks gives the store's time, by an object that it writes, and how far the clock is
// ahead of it.
func (s *Service) clocks(ctx context.Context) (stored time.Time, ahead time.Duration, err error) {
	now := s.now() // before the store's, so that a slow answer makes it no less right
	info, err := s.store.Put(ctx, layout.RollupClockKey, []byte("{}"), objstore.PutOptions{ContentType: "application/json"})
	if err == nil && info.LastModified.IsZero() {
		info, err = s.store.Head(ctx, layout.RollupClockKey)
	}
	if err != nil {
		return stored, 0, fmt.Errorf("ask the store's time: %w", err)
	}
	ahead = now.Sub(info.LastModified)
	s.m.clockAhead.Set(ahead.Seconds())
	return info.LastModified, ahead, nil
}

// confirmedNow is the time by which something may be removed because it is old, which
// can't be undone: the store's, or this machine's where that is earlier. A *ClockError
// where they are far apart.
func (s *Service) confirmedNow(ctx context.Context) (time.Time, error) {
	stored, ahead, err := s.clocks(ctx)
	if err != nil {
		return stored, err
	}
	if ahead > maxClockAhead {
		return stored, &ClockError{ahead}
	}
	if ahead < 0 {
		return stored.Add(ahead), nil
	}
	return stored, nil
}
