package reconciler

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/sharedid"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// promoteEvery is how often due retries are moved to the queue.
const promoteEvery = 50 * time.Millisecond

// work reconciles manifests until ctx ends. It finishes the manifest that it has begun.
func (s *Service) work(ctx context.Context) error {
	for {
		it, err := s.queue.take(ctx)
		if err != nil {
			return err
		}
		// A shutdown does not interrupt a manifest: half a pass would be repeated from its beginning.
		ictx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.ItemTimeout)
		entry, err := s.process(ictx, it)
		cancel()
		if err != nil {
			s.retry(it, err)
			continue
		}
		s.queue.finish(it, true, entry)
	}
}

// process makes one attempt at one manifest. After an error it is tried again later.
func (s *Service) process(ctx context.Context, it *item) (*ledger.Entry, error) {
	// Before anything is written for the manifest: an attempt that timed out here is just repeated.
	if err := s.intake.waitForRoom(ctx); err != nil {
		return nil, err
	}
	res, err := s.core.Reconcile(ctx, it.key, s.queue.options(it))
	failpoint.Hit("reconciler.work.reconciled.after")
	s.countCreated(it, res)
	switch {
	case errors.Is(err, reconcile.ErrUnknownKey):
		s.m.ends.WithLabelValues("unknown").Inc()
		return nil, nil
	case errors.Is(err, objstore.ErrNotFound):
		// The hint was wrong, or an operator deleted the manifest after the listing.
		s.m.ends.WithLabelValues("absent").Inc()
		s.log.Warn("no such manifest", "key", it.key, "source", it.src)
		return nil, nil
	case err != nil:
		return nil, err
	}
	s.report(it, res)
	// A quarantine record, or a manifest that can't be used: neither has a ledger entry.
	if res.Manifest == nil {
		s.reconciled.Add(1)
		return nil, nil
	}
	m := *res.Manifest
	e := ledger.Entry{Start: m.Identity.SeqStart, End: m.Identity.SeqEnd, AcceptedAt: m.AcceptedAt}
	// This pass created the last derived key, so no reconciler has finished the manifest before (or
	// the key was lost since).
	first := res.WasCreated(reconcile.AcceptedByTime)
	// A scan that finds the key missing repairs it, but the identity may have been counted before.
	fresh := first && (it.src == fromEvent || it.src == fromNotify || it.src == fromFrontier)
	change, err := s.ledgers.add(ctx, m.Identity.BootOf(), e, fresh, func(c ledger.Change) {
		// Readers of the intake expect the frame to exist. A batch whose frame was missing is added when it is healed.
		if res.Cause == "" && !res.Removed && (c.Kind == ledger.Added || c.Kind == ledger.Covered && it.src != fromFullAudit || first || res.Healed) {
			s.intake.add(m.Batch())
		}
	})
	if err != nil {
		return nil, err
	}
	failpoint.Hit("reconciler.work.counted.after")
	b := sharedid.Batch{Boot: m.Identity.BootOf(), AcceptedAt: m.AcceptedAt, MinTime: m.MinTime, MaxTime: m.MaxTime}
	if boots := s.shared.Add(s.now(), b); boots != nil {
		s.log.Warn("several machines send as one agent", "agent", b.Boot.Agent, "boots", boots)
	}
	if len(change.Overlap) > 0 {
		s.m.overlaps.Inc()
		s.log.Warn("identities overlap", "identity", m.Identity.String(), "ranges", change.Overlap)
	}
	if first {
		s.m.lag.Observe(max(0, s.now().Sub(m.AcceptedTime()).Seconds()))
	}
	if first || change.Kind == ledger.Added {
		n := s.hub.publish(&reconcilerv1.WatchAcceptedResponse{ManifestKey: res.Key, Manifest: res.Bytes})
		s.m.lagged.Add(float64(n))
	}
	failpoint.Hit("reconciler.work.published.after")
	// Last, because the time scan skips the manifest from here on.
	s.indexed.add(byTimeKey(m))
	s.reconciled.Add(1)
	return &e, nil
}

func (s *Service) countCreated(it *item, res reconcile.Result) {
	for _, k := range res.Created {
		s.m.created.WithLabelValues(string(k)).Inc()
		if it.src == fromTimeScan || it.src == fromFullAudit || it.src == fromRepair {
			s.m.repairs.WithLabelValues(string(k)).Inc()
			s.repairs.add(k)
		}
	}
}

// report counts and logs the result of a pass, and remembers manifests that can't be used.
func (s *Service) report(it *item, res reconcile.Result) {
	switch {
	case res.Removed:
		s.m.ends.WithLabelValues("removed").Inc()
	case res.Cause == "":
		s.m.ends.WithLabelValues("ok").Inc()
	default:
		s.m.ends.WithLabelValues("reported").Inc()
	}
	if res.Cause == reconcile.CauseBadManifest || res.Cause == reconcile.CauseForeign || res.Cause == reconcile.CauseNewer {
		s.bad.add(it.key) // it is in no ledger, so each audit would queue it again
	} else {
		s.bad.remove(it.key)
	}
	if res.Opened {
		s.openRepairs.Add(1)
		s.m.opened.WithLabelValues(string(res.Cause)).Inc()
		s.log.Error("repair record opened", "manifest", it.key, "cause", res.Cause)
	}
	if res.Healed {
		s.m.healed.Inc()
		s.log.Info("repair record removed: the fault is gone", "manifest", it.key)
	}
}

func (s *Service) retry(it *item, err error) {
	it.tries++
	wait := retry.Policy{Base: s.cfg.Queue.RetryBase, Cap: s.cfg.Queue.RetryMax}.Wait(it.tries, rand.Float64())
	if s.queue.retryAt(it, s.now().Add(wait)) {
		s.m.ends.WithLabelValues("retry").Inc()
		s.log.Warn("reconciling failed; it is tried again later", "key", it.key, "try", it.tries, "wait", wait, "error", err)
		return
	}
	s.m.ends.WithLabelValues("aborted").Inc()
	s.log.Error("reconciling was aborted: too many manifests wait for a retry; a scan finds it again", "key", it.key, "error", err)
}

// promote moves due retries back into the queue.
func (s *Service) promote(ctx context.Context) error {
	return every(ctx, promoteEvery, func() { s.queue.promote(s.now()) })
}

// hint queues a key from an event or a collector. It never waits.
func (s *Service) hint(key string, src source) offerResult {
	o := s.queue.offer(&item{key: key, src: src, queuedAt: s.now()})
	switch o {
	case offerQueued:
		s.m.items.WithLabelValues(string(src)).Inc()
		s.m.hints.WithLabelValues(string(src), "queued").Inc()
	case offerKnown:
		s.m.hints.WithLabelValues(string(src), "known").Inc()
	case offerFull:
		s.m.hints.WithLabelValues(string(src), "dropped").Inc()
	}
	return o
}

// enqueue queues the find of a scan, and waits for room.
func (s *Service) enqueue(ctx context.Context, it *item) error {
	it.queuedAt = s.now()
	s.m.items.WithLabelValues(string(it.src)).Inc()
	return s.queue.put(ctx, it)
}

// every calls fn at once and then each interval until ctx ends.
func every(ctx context.Context, interval time.Duration, fn func()) error {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		fn()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
