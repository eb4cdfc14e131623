package reconciler

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/reconcile"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
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
		err = s.process(ictx, it)
		cancel()
		if err != nil {
			s.retry(it, err)
			continue
		}
		s.queue.finish(it, true)
	}
}

// process makes one attempt at one manifest. After an error it is tried again later.
func (s *Service) process(ctx context.Context, it *item) error {
	res, err := s.core.Reconcile(ctx, it.key, s.queue.options(it))
	failpoint.Hit("reconciler.work.reconciled.after")
	s.countCreated(it, res)
	switch {
	case errors.Is(err, reconcile.ErrUnknownKey):
		s.m.ends.WithLabelValues("unknown").Inc()
		return nil
	case errors.Is(err, objstore.ErrNotFound):
		// An operator deleted the manifest after it was listed or journalled.
		s.m.ends.WithLabelValues("absent").Inc()
		s.log.Warn("no such manifest", "key", it.key, "source", it.src)
		return nil
	case err != nil:
		return err
	}
	s.report(it, res)
	s.reconciled.Add(1)
	if res.Cause == reconcile.CauseMissing || res.Cause == reconcile.CauseCorrupt {
		// It is reported, whatever becomes of this: the next sweep of open records tries again.
		if _, err := s.putBack(ctx, it.key, ""); err != nil {
			s.log.Warn("a frame was not put back; tried again later", "manifest", it.key, "error", err)
		}
	}
	return nil
}

func (s *Service) countCreated(it *item, res reconcile.Result) {
	for _, k := range res.Created {
		s.m.created.WithLabelValues(string(k)).Inc()
		if it.src == fromFullAudit || it.src == fromScrub || it.src == fromRepair {
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

// offer queues a key if there is room; a later audit, or pass of the scrub, finds it again.
func (s *Service) offer(key string, src source) {
	if s.queue.offer(&item{key: key, src: src, headFirst: true, queuedAt: s.now()}) == offerQueued {
		s.m.items.WithLabelValues(string(src)).Inc()
	}
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
