package reconciler

import (
	"context"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// rebuildsAtOnce bounds the boots whose ledger is built anew at one time.
const rebuildsAtOnce = 32

// fullAudit lists every identity manifest and every quarantine record, checks all
// that follows from them, and builds each ledger anew. It is the one that is complete.
func (s *Service) fullAudit(ctx context.Context) error {
	began, err := s.storeTime(ctx)
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(rebuildsAtOnce)
	var boot identity.Boot
	var r *round
	endBoot := func() {
		if ended := r; ended != nil {
			g.Go(func() error { return s.rebuilt(gctx, ended) })
		}
		r = nil
	}
	err = s.listAll(gctx, layout.AcceptedPrefix, "", func(o objstore.Info) error {
		id, err := layout.ParseAccepted(o.Key)
		if err != nil {
			s.strange(o.Key)
			return nil
		}
		if r == nil || id.BootOf() != boot {
			endBoot()
			boot, r = id.BootOf(), newRound()
			r.rebuilt = ledger.New(boot)
		}
		return s.found(gctx, &item{key: o.Key, src: fromFullAudit, look: true, rounds: []*round{r}})
	})
	endBoot()
	if err = firstError(g.Wait(), err); err != nil {
		return err
	}
	q := newRound()
	err = s.listAll(ctx, layout.QuarantinePrefix, "", func(o objstore.Info) error {
		if _, _, err := layout.ParseQuarantine(o.Key); err != nil {
			s.strange(o.Key)
			return nil
		}
		return s.found(ctx, &item{key: o.Key, src: fromFullAudit, look: true, rounds: []*round{q}})
	})
	if err != nil {
		return err
	}
	if err := q.wait(ctx); err != nil {
		return err
	}
	s.completed(began)
	return nil
}

// rebuilt waits for one boot's manifests and puts its ledger in place.
func (s *Service) rebuilt(ctx context.Context, r *round) error {
	if err := r.wait(ctx); err != nil {
		return err
	}
	return s.book.replace(ctx, r.rebuilt)
}
