package rollup

import (
	"context"

	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// sweepTries bounds the hours of others that a sweep passes over at once.
const sweepTries = 8

// sweepNext sweeps the first hour after the given one that falls to this worker, and gives
// the hour to go on from: earliest-1 after the last one. Workers share the hours as they
// share the shards, so more of them make a round faster and not dearer.
func (s *Service) sweepNext(ctx context.Context, after timegrid.Hour) (at timegrid.Hour, queued int, err error) {
	at = after
	for range sweepTries {
		next, ok := s.sweepsAfter(at)
		if !ok {
			return after, 0, nil // owns nothing
		}
		h, found, err := s.collector.NextHour(ctx, next-1)
		switch {
		case err != nil:
			return at, 0, err
		case !found:
			return earliest - 1, 0, nil
		case s.sweeps(h):
			queued, err = s.collector.Sweep(ctx, h)
			return h, queued, err // an hour that can't be read has its next turn a round later
		}
		at = h
	}
	return at, 0, nil
}

// sweeps: an hour falls to the owner of a shard.
func (s *Service) sweeps(h timegrid.Hour) bool {
	k := int64(s.cfg.Shards)
	return s.owns(shard.ID((int64(h)%k + k) % k))
}

// sweepsAfter is the first hour after h that falls to this worker.
func (s *Service) sweepsAfter(h timegrid.Hour) (timegrid.Hour, bool) {
	for range s.cfg.Shards {
		if h++; s.sweeps(h) {
			return h, true
		}
	}
	return h, false
}
