package job

import (
	"context"
	"errors"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/aside"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/backlog"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/frames"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/hour"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/late"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/requests"
)

// Shard is what is known of an owned shard, as far as jobs decide by it. Its owner has one and
// runs one job at a time; it is not for concurrent use.
type Shard struct {
	ownership.Grant
	Backlog    *backlog.Backlog
	Unreadable *backlog.Unreadable
	Aside      *aside.Agents
	Requests   *requests.Requests
	Frames     *frames.Reader
	Late       *late.Book
	// ReadThrough gives the positions of the journal before which every batch is pending, in blocks or
	// in deltas; false while that can't be said of any.
	ReadThrough func() (journal.Positions, bool)
	// PerRecord is the memory that a record of the shard took when its last hour was built, 0
	// when that is not known: the best guess of what the next hour needs.
	PerRecord float64
	// Notes are the keys of notes of attempts that this owner has in the store.
	Notes map[string]struct{}
}

const (
	// checksAtOnce bounds the frames of an hour that are tried again at once, and checkPause is
	// the time until the next ones are: an hour may have thousands that were lost together.
	checksAtOnce = 64
	checkPause   = 30 * time.Second
)

// readThrough are the positions that a plan made now records. A damaged record may have covered
// batches that are neither pending nor in a plan that is left, so nothing is said then.
func (s *Shard) readThrough(st *hour.State) *journal.Positions {
	p, ok := s.ReadThrough()
	if !ok || len(st.Damaged) > 0 {
		return nil
	}
	return catalog.ReadThrough(p)
}

// Inputs are the batches that the next generation of the hour is to have: the pending ones and
// those of deltas, but for those whose frames can't be read and those of agents that are set
// aside. again is when one of the former is to be tried next.
func (s *Shard) Inputs(ctx context.Context, h timegrid.Hour, now time.Time) (in []accepted.Batch, again time.Time, err error) {
	return s.usable(ctx, merge(s.Backlog.Inputs(h), s.Late.Inputs(h)), h, now)
}

// Pending is Inputs without the batches of deltas.
func (s *Shard) Pending(ctx context.Context, h timegrid.Hour, now time.Time) (in []accepted.Batch, again time.Time, err error) {
	return s.usable(ctx, s.Backlog.Inputs(h), h, now)
}

func (s *Shard) usable(ctx context.Context, of []accepted.Batch, h timegrid.Hour, now time.Time) (in []accepted.Batch, again time.Time, err error) {
	checks := 0
	again = now.Add(backlog.UnreadableWait)
	for _, e := range of {
		if s.Aside.SetAside(h, e.Agent) {
			continue
		}
		listed, due := s.Unreadable.Due(e.Identity, now)
		// An hour that it has no samples in does not need its frame. What waits for the frame of another one waits in all
		// of its hours, so that these agree whose the numbers are that both have.
		frame, needs := e, s.Unreadable.Needs(e.Identity)
		if needs != nil {
			frame = *needs
		}
		listed = listed && (needs != nil || e.In(h))
		if listed && !due {
			continue
		}
		if listed {
			if checks++; checks > checksAtOnce {
				again = now.Add(checkPause)
				continue
			}
			err := s.Frames.Check(ctx, frame)
			var bad *frames.UnreadableError
			if errors.As(err, &bad) {
				s.Unreadable.Add(e.Identity, now)
				continue
			}
			if err != nil {
				return nil, again, err
			}
			s.Unreadable.Remove(e.Identity)
		}
		in = append(in, e)
	}
	return in, again, nil
}
