package rollup

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// leftOut is a pending batch whose frame can't be read: plans go without it until then.
type leftOut struct {
	until time.Time
	tries int
}

const (
	// outFor is about how long a batch is left out at first; it doubles with each try, up to outMax.
	outFor = 5 * time.Minute
	outMax = outFor << 6
	// checksAtOnce bounds the frames of an hour that are tried again at once, checkPause is
	// the time until the next ones are.
	checksAtOnce = 64
	checkPause   = 30 * time.Second
)

func (o *owner) leaveOut(id identity.Batch) {
	l := o.out[id]
	l.tries++
	l.until = o.s.now().Add(retry.Policy{Base: outFor, Cap: outMax}.Wait(l.tries, rand.Float64()))
	o.out[id] = l
}

// readable are the pending inputs of the hour but for those whose frames can't be read and
// those of agents that are set aside, and when to try one of these again.
func (o *owner) readable(ctx context.Context, h timegrid.Hour) (in []accepted.Batch, again time.Time, err error) {
	now, checks := o.s.now(), 0
	again = now.Add(outFor)
	for _, e := range o.log.inputs(h) {
		if o.isAside(h, e.Agent) {
			continue
		}
		l, out := o.out[e.Identity]
		if out && now.Before(l.until) {
			continue
		}
		if out {
			if checks++; checks > checksAtOnce {
				again = now.Add(checkPause)
				continue
			}
			err := o.s.check(ctx, e)
			var bad *UnreadableError
			if errors.As(err, &bad) {
				o.leaveOut(e.Identity)
				continue
			}
			if err != nil {
				return nil, again, err
			}
			delete(o.out, e.Identity)
		}
		in = append(in, e)
	}
	return in, again, nil
}

// check reads and decodes a frame: *UnreadableError when that can't be.
func (s *Service) check(ctx context.Context, e accepted.Batch) error {
	raw, err := s.frames.get(ctx, e)
	if err != nil {
		return err
	}
	if _, err := s.decoder().decode(raw); err != nil {
		return &UnreadableError{e, err}
	}
	return nil
}

// damaged reads the frames of entries and gives those that can't be read, some at once.
// So an hour with many costs one generation that is given up, and not one for each.
func (s *Service) damaged(ctx context.Context, entries []accepted.Batch) (bad []*UnreadableError, err error) {
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(s.cfg.Jobs.Readers)
	for _, e := range entries {
		g.Go(func() error {
			err := s.check(ctx, e)
			var one *UnreadableError
			if !errors.As(err, &one) {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			bad = append(bad, one)
			return nil
		})
	}
	return bad, g.Wait()
}
