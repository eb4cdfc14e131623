package reconciler

import (
	"context"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// rebuildsAtOnce bounds the boots whose ledgers are rebuilt at one time.
const rebuildsAtOnce = 32

// fullAudit lists every identity manifest and every quarantine record, checks everything
// that is derived from them, and rebuilds each ledger. It also finds what the frontier audit
// leaves out.
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
			s.reportForeign(o.Key)
			return nil
		}
		// Keys are listed boot by boot, so another boot means that the last one is complete.
		if r == nil || id.BootOf() != boot {
			endBoot()
			boot, r = id.BootOf(), newRound()
			r.rebuilt = ledger.New(boot)
		}
		return s.enqueue(gctx, &item{key: o.Key, src: fromFullAudit, headFirst: true, rounds: []*round{r}})
	})
	endBoot()
	if err = firstError(g.Wait(), err); err != nil {
		return err
	}
	q := newRound()
	err = s.listAll(ctx, layout.QuarantinePrefix, "", func(o objstore.Info) error {
		if _, _, err := layout.ParseQuarantine(o.Key); err != nil {
			s.reportForeign(o.Key)
			return nil
		}
		return s.enqueue(ctx, &item{key: o.Key, src: fromFullAudit, headFirst: true, rounds: []*round{q}})
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

// rebuilt waits until one boot's manifests are reconciled and replaces its ledger.
func (s *Service) rebuilt(ctx context.Context, r *round) error {
	if err := r.wait(ctx); err != nil {
		return err
	}
	return s.ledgers.replace(ctx, r.rebuilt)
}
