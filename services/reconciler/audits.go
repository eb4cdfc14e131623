package reconciler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/derived/audit"
	"lightmetrics.dev/lightmetrics/internal/derived/ledgers"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
	"lightmetrics.dev/lightmetrics/services/reconciler/internal/tail"
)

const (
	// auditAgain is how often the store is asked whether there is something to audit: somebody else may have begun it.
	auditAgain = 3 * time.Minute
	// auditLease is after how long a shard is taken from a process that does not move its record. It moves each quarter
	// of that, or each thousand requests.
	auditLease = 10 * time.Minute
	// unreadAgain is how long after a full audit that found manifests that it can't read, which keep the journal from being
	// complete, the next one begins by itself.
	unreadAgain = 6 * time.Hour
)

// audits begins audits when they are due, and works on all that have not finished.
func (k *journalKeeper) audits(ctx context.Context, authority string, set *ledgers.Set, c *claimKeeper, of judge, fits func(context.Context) error) error {
	w, err := journal.NewWriter(journal.WriterConfig{
		Store: k.store, Rand: rand.Reader, Clock: func() int64 { return time.Now().UnixNano() },
		Opening: journal.Opening{Writer: k.id, Role: journal.RoleReconciler, Authority: authority},
	})
	if err != nil {
		return fmt.Errorf("reconciler: %w", err)
	}
	limit := rate.NewLimiter(rate.Limit(k.cfg.Audit.Rate), 1)
	a := &audit.Auditor{
		Store: k.store, Rand: rand.Reader, Authority: authority, By: k.id, Writer: w, Ledgers: set, Fan: tail.Fan(k.cfg.Journal.Readers),
		Shards: k.cfg.Audit.Shards, Lease: max(auditLease, time.Duration(2000/k.cfg.Audit.Rate*float64(time.Second))),
		Pace: limit.Wait, Unusable: k.to.unusable, Foreign: k.to.foreign, Underived: k.to.underived, Inventory: k.to.inventory,
	}
	if c != nil {
		a.Judge = c.auditJudge
	} else if of != nil {
		a.Judge = of.judge
	}
	for first := true; ; first = false {
		_, _, ready := k.status()
		err := k.audit(ctx, a, first, fits)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if unfit(err) {
			return err
		}
		if err != nil {
			k.log.Warn("the audit was interrupted; it goes on where it was", "error", err)
		}
		wait := auditAgain
		switch {
		case !ready:
			wait = scanAgain
		// The linearizer may have been away, which recovers by itself.
		case err != nil && c != nil:
			wait = min(wait, k.cfg.Claims.Interval)
		}
		if err := run.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// audit begins what is due, and works on what there is, as long as the bucket fits.
func (k *journalKeeper) audit(ctx context.Context, a *audit.Auditor, first bool, fits func(context.Context) error) error {
	// More than one full audit is under way where an operator has begun one beside the one that is spread.
	full, err := audit.History(ctx, k.store, audit.Full, 3)
	if err != nil {
		return err
	}
	news, err := audit.History(ctx, k.store, audit.News, 2)
	if err != nil {
		return err
	}
	k.m.audits.note(audit.Full, full, k.cfg.Audit.Period)
	k.m.audits.note(audit.News, news, k.cfg.Audit.Interval)
	if k.m.claims != nil {
		k.m.claims.audited(full)
	}
	begun, err := k.beginAudits(ctx, a, full, news, first)
	if err != nil {
		return err
	}
	todo := slices.Concat(begun, news, full)
	if k.cfg.Derived == DerivedObjects {
		derived, err := k.derivedAudits(ctx, a, first)
		if err != nil {
			return err
		}
		// Last, so that it has what the others have journalled.
		todo = append(todo, derived...)
	}
	todo = slices.DeleteFunc(todo, func(r audit.Stored) bool { return r.Finished() })
	if len(todo) > 0 {
		if err := fits(ctx); err != nil {
			return err
		}
	}
	var errs []error
	for _, r := range todo {
		done, err := a.Work(ctx, &r)
		errs = append(errs, err)
		if done && r.Scope == audit.Derived {
			k.log.Info("audit of derived keys finished", "record", r.Key, "keys", r.Manifests, "missing", r.Journalled)
		} else if done {
			k.m.journalled.Add(float64(r.Journalled))
			k.log.Info("audit finished", "record", r.Key, "manifests", r.Manifests, "conflicts", r.Conflicts, "journalled", r.Journalled, "unusable", r.Unusable)
		}
	}
	return errors.Join(errs...)
}

// beginAudits begins what is due. The store says what there was: the last audit may have been another reconciler's.
func (k *journalKeeper) beginAudits(ctx context.Context, a *audit.Auditor, full, news []audit.Stored, first bool) (out []audit.Stored, _ error) {
	begin := func(r audit.Stored, err error) error {
		if err == nil {
			out = append(out, r)
		}
		return err
	}
	proof, err := journal.ReadBegin(ctx, k.store)
	if err != nil {
		return nil, err
	}
	head, _, err := journal.ReadHead(ctx, k.store)
	if err != nil {
		return nil, err
	}
	complete, gauge := proof.Covers(head.Lost), 0.0
	if complete {
		gauge = 1
	}
	k.complete.Store(complete)
	k.m.complete.Set(gauge)
	switch {
	// Nothing that is spread, no inventory, and nothing from before a file was dropped says that the journal is complete now.
	case !complete || first && k.cfg.Audit.AtStart:
		_, now, ready := k.status()
		for i := range full {
			switch r := &full[i]; {
			case r.Spread > 0 || r.Inventory != "" || r.Through < head.Lost || r.Through > head.Number:
			case !r.Finished():
				return nil, nil
			// It has found manifests that it can't read. Until somebody has dealt with these, the next one finds the same.
			case !complete && !r.Shows(&head) && (!ready || now.Sub(time.Unix(r.FinishedAt, 0)) < unreadAgain):
				k.log.Error("manifests can't be read, so the journal is not complete: repair/v1/ has a record of each; restore them, then lmctl audit run", "audit", r.Key, "unread", r.Unread)
				return nil, nil
			}
		}
		return out, begin(a.Begin(ctx, 0))
	}
	_, now, ready := k.status()
	if !ready {
		return nil, nil
	}
	if len(news) == 0 {
		// After the first full audit, what came since then is the first news.
		news = slices.DeleteFunc(slices.Clone(full), func(r audit.Stored) bool { return !r.Finished() })
	}
	if k.auditDue(news, now, k.cfg.Audit.Interval) {
		if err := begin(a.BeginNews(ctx)); err != nil {
			return out, err
		}
	}
	if k.auditDue(full, now, k.cfg.Audit.Period) {
		return out, begin(k.beginFull(ctx, a, full))
	}
	return out, nil
}

// auditDue: a new bucket has the journal from its beginning, so its first audits may wait.
func (k *journalKeeper) auditDue(history []audit.Stored, now time.Time, interval time.Duration) bool {
	return interval > 0 && audit.Due(history, now, interval) && (len(history) > 0 || k.monotonic() >= int64(min(interval, k.cfg.Audit.Interval)))
}

// derivedAudits are those of derived keys, with one that is due.
func (k *journalKeeper) derivedAudits(ctx context.Context, a *audit.Auditor, first bool) ([]audit.Stored, error) {
	all, err := audit.History(ctx, k.store, audit.Derived, 2)
	if err != nil {
		return nil, err
	}
	spread := k.cfg.Audit.Period
	if atStart := first && k.cfg.Audit.AtStart; atStart {
		spread = 0
	} else if _, now, ready := k.status(); !ready || !k.auditDue(all, now, k.cfg.Audit.Period) {
		return all, nil
	}
	r, err := a.BeginDerived(ctx, spread)
	return append(all, r), err
}

// beginFull begins an audit of the newest inventory, or, where there is none since the last audit began, of listings.
func (k *journalKeeper) beginFull(ctx context.Context, a *audit.Auditor, full []audit.Stored) (audit.Stored, error) {
	if a.Inventory != nil {
		inv, err := a.Inventory(ctx, "")
		switch {
		case err != nil:
			k.log.Warn("there is no inventory that can be used; the full audit lists the bucket", "error", err)
		case len(full) > 0 && inv.At.Unix() <= full[0].StartedAt:
			k.log.Warn("there is no inventory since the last full audit; this one lists the bucket", "newest", inv.Key)
		default:
			return a.BeginInventory(ctx, inv)
		}
	}
	return a.Begin(ctx, k.cfg.Audit.Period)
}
