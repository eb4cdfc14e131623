package spread

import (
	"context"
	"errors"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
)

// degraded is told of a fragment that a reader could not use.
func (s *Store) degraded(l Located, err error) {
	s.counts.degraded.Add(1)
	s.log.Warn("a fragment cannot be used", "place", l.Place, "fragment", l.Name(), "error", err)
	if h := s.opt.Hooks.Degraded; h != nil {
		h(l, err)
		return
	}
	if !errors.Is(err, erasure.ErrCorrupt) {
		return // the drive or the network failed; the bytes may be whole
	}
	select {
	case s.repair <- l:
	default: // it is found again by the next reader
	}
}

// Run mends what readers find damaged, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case l := <-s.repair:
			_, err := s.Heal(ctx, l, Coding{})
			if err != nil && ctx.Err() == nil {
				s.log.Error("a damaged fragment could not be mended", "place", l.Place, "fragment", l.Name(), "error", err)
			} else if err == nil {
				s.log.Info("a damaged fragment was mended", "place", l.Place, "fragment", l.Name())
			}
		}
	}
}
