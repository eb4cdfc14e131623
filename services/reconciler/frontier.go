package reconciler

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// clockKey is written before a frontier audit to learn the store's time.
const clockKey = layout.ReconcilePrefix + "clock.json"

// seqDigits is the number of digits of a sequence number in keys.
const seqDigits = 20

// frontierAudit lists all boots, and the keys of each boot from its frontier on, and waits
// until the manifests that it found are reconciled. It finds everything that was accepted
// before it began, except identities that overlap older ones or fill a closed gap.
func (s *Service) frontierAudit(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Frontier.Timeout)
	defer cancel()
	if err := s.core.CheckAuthority(ctx); err != nil {
		return err
	}
	began, err := s.storeTime(ctx)
	if err != nil {
		return err
	}
	r := newRound()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.cfg.Frontier.Concurrency)
	err = s.listAll(gctx, layout.BootsPrefix, "", func(o objstore.Info) error {
		boot, err := layout.ParseBoot(o.Key)
		if err != nil {
			s.reportForeign(o.Key)
			return nil
		}
		g.Go(func() error { return s.auditBoot(gctx, boot, r) })
		return gctx.Err()
	})
	if err = firstError(g.Wait(), err); err != nil {
		r.fail()
		return err
	}
	failpoint.Hit("reconciler.audit.listed.before")
	// From here on every boot is in the ledger cache, so ListLedgers shows all of them.
	s.listed.Store(true)
	// Only now may complete_through move: a manifest that was found and not reconciled is missing in
	// the derived state.
	if err := r.wait(ctx); err != nil {
		return err
	}
	s.completed(began)
	return nil
}

func (s *Service) auditBoot(ctx context.Context, boot identity.Boot, r *round) error {
	a, err := s.ledgers.open(ctx, boot)
	if err != nil {
		return err
	}
	closed := s.now().Add(-s.cfg.Frontier.GapGrace).UnixNano()
	from, some := a.l.ListFrom(closed, s.cfg.Frontier.Back)
	a.mu.Unlock()
	prefix, after := layout.AcceptedBoot(boot), ""
	if some {
		// The number alone sorts before every key that begins with it.
		after = prefix + layout.SeqName(from, from)[:seqDigits]
	}
	return s.listAll(ctx, prefix, after, func(o objstore.Info) error {
		id, err := layout.ParseAccepted(o.Key)
		if err != nil {
			s.reportForeign(o.Key)
			return nil
		}
		a, err := s.ledgers.open(ctx, boot)
		if err != nil {
			return err
		}
		// The ledger is locked for one key at a time: workers add to it while the boot is listed.
		known := a.l.Seen(id.SeqStart, id.SeqEnd)
		a.mu.Unlock()
		if known || s.bad.has(o.Key) {
			return nil
		}
		return s.enqueue(ctx, &item{key: o.Key, src: fromFrontier, rounds: []*round{r}})
	})
}

// storeTime returns the store's time, which it stamps a write with, rounded down to a second like Last-Modified. complete_through is compared with it, so it must not be later than the start of the listing.
func (s *Service) storeTime(ctx context.Context) (time.Time, error) {
	info, err := s.store.Put(ctx, clockKey, []byte("{}"), objstore.PutOptions{ContentType: "application/json"})
	if err != nil {
		return time.Time{}, err
	}
	if info.LastModified.IsZero() {
		if info, err = s.store.Head(ctx, clockKey); err != nil {
			return time.Time{}, err
		}
	}
	return info.LastModified.Truncate(time.Second), nil
}

// completed moves complete_through forward to t, never back: two audits may end in any order.
func (s *Service) completed(t time.Time) {
	for {
		old := s.complete.Load()
		if t.UnixNano() <= old {
			return
		}
		if s.complete.CompareAndSwap(old, t.UnixNano()) {
			s.m.complete.Set(float64(t.UnixNano()) / 1e9)
			return
		}
	}
}

// reportForeign reports, once, a key under our prefixes that we never write. The object is never changed.
func (s *Service) reportForeign(key string) {
	if s.bad.has(key) {
		return
	}
	s.bad.add(key)
	s.m.foreign.WithLabelValues(objstore.Family(key)).Inc()
	s.log.Warn("unknown key under our prefix", "key", key)
}

// listAll calls fn for every object under prefix after the key. A failed page is an error, never the end.
func (s *Service) listAll(ctx context.Context, prefix, after string, fn func(objstore.Info) error) error {
	for o, err := range objstore.List(ctx, s.store, objstore.ListOptions{Prefix: prefix, StartAfter: after}) {
		if err == nil {
			err = fn(o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// firstError returns the first error that is no cancellation, because cancellations follow from it.
func firstError(errs ...error) error {
	var canceled error
	for _, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, context.Canceled):
			canceled = err
		default:
			return err
		}
	}
	return canceled
}
