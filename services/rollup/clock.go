package rollup

import (
	"context"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// maxClockAhead of the store's time is taken for a clock that is right. Sets stay for a day
// at least, so nothing is removed early by more than a small part.
const maxClockAhead = 5 * time.Minute

// ClockError refuses to remove what is too old by a clock that the store does not confirm.
type ClockError struct{ Ahead time.Duration }

func (e *ClockError) Error() string {
	return fmt.Sprintf("this machine's clock is %v ahead of the store's: nothing is removed for its age", e.Ahead.Round(time.Second))
}

// clockAhead tells how far the clock is ahead of the store's, by an object that it writes.
func (s *Service) clockAhead(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	now := s.now() // before the store's, so that a slow answer makes it no less right
	info, err := s.store.Put(ctx, layout.RollupClockKey, []byte("{}"), objstore.PutOptions{ContentType: "application/json"})
	if err == nil && info.LastModified.IsZero() {
		info, err = s.store.Head(ctx, layout.RollupClockKey)
	}
	if err != nil {
		return 0, fmt.Errorf("ask the store's time: %w", err)
	}
	ahead := now.Sub(info.LastModified)
	s.m.clockAhead.Set(ahead.Seconds())
	return ahead, nil
}

// confirmClock is asked before something is removed because it is old: that can't be undone.
func (s *Service) confirmClock(ctx context.Context) error {
	ahead, err := s.clockAhead(ctx)
	if err == nil && ahead > maxClockAhead {
		err = &ClockError{ahead}
	}
	return err
}
