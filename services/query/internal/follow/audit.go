package follow

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Audit lists the manifests of every boot, from the boot's frontier or, when full, from its start, and takes every
// batch that it did not know: it is then queryable, or recorded as unreadable. On success everything that was
// accepted before the audit began is accounted for, and complete_through is that time. A failed listing fails the
// audit.
func (f *Follower) Audit(ctx context.Context, full bool) error {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.AuditTimeout)
	defer cancel()
	started := f.d.Now()
	err := f.audit(ctx, full)
	failpoint.Hit("query.audit.done.before")
	f.m.audit(full, err, f.d.Now().Sub(started))

	f.mu.Lock()
	defer f.mu.Unlock()
	// Recorded on success too: it clears the failure of an earlier audit.
	f.lastErr = err
	if err != nil {
		return err
	}
	// The start and not the end: a batch that was accepted during the audit may lie behind its listing.
	f.complete = started
	if full {
		f.fullAt = started
		f.audited()
	}
	if !f.started {
		f.started = true
		close(f.first)
	}
	return nil
}

func (f *Follower) audit(ctx context.Context, full bool) error {
	if err := f.auditBoots(ctx, full); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := f.retryUnread(ctx); err != nil {
		return fmt.Errorf("audit: retry: %w", err)
	}
	return nil
}

func (f *Follower) auditBoots(ctx context.Context, full bool) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(f.cfg.Listers)
	var failed error
	for o, err := range objstore.List(ctx, f.d.Store, objstore.ListOptions{Prefix: layout.BootsPrefix}) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			failed = err
			break
		}
		boot, err := layout.ParseBoot(o.Key)
		if err != nil {
			// A foreign key must not stop audits, or answers would stay incomplete for ever.
			f.d.Log.Warn("unknown key among the boots", "key", o.Key, "error", err)
			continue
		}
		g.Go(func() error { return f.auditBoot(ctx, boot, full) })
	}
	if werr := g.Wait(); werr != nil {
		return werr // the cause; the listing only reports that it was canceled
	}
	return failed
}

// auditBoot takes every batch of a boot that is not known.
func (f *Follower) auditBoot(ctx context.Context, boot identity.Boot, full bool) error {
	// Keys of a boot sort by sequence number, so a frontier is a place in the listing.
	prefix := layout.AcceptedBoot(boot)
	after := ""
	if !full {
		after = f.listAfter(boot, prefix)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(f.cfg.Fetchers)
	begins := after == "" // the listing begins with the boot's first batch
	var failed error
	for o, err := range objstore.List(ctx, f.d.Store, objstore.ListOptions{Prefix: prefix, StartAfter: after}) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			failed = err
			break
		}
		id, err := layout.ParseAccepted(o.Key)
		if err != nil {
			f.d.Log.Warn("unknown key among the manifests", "key", o.Key, "error", err)
			continue
		}
		if !f.seen(id, o.LastModified) {
			g.Go(func() error { return f.take(ctx, o.Key, nil) })
			// A batch that need not be fetched still tells when the boot's samples begin.
		} else if begins {
			g.Go(func() error { return f.readFirst(ctx, id) })
		}
		begins = false
	}
	if werr := g.Wait(); werr != nil {
		return werr
	}
	return failed
}

// listAfter is the key after which an audit lists a boot: its frontier, or "" for the start.
func (f *Follower) listAfter(boot identity.Boot, prefix string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.ledgers[boot]
	if l == nil {
		return ""
	}
	from, ok := l.ListFrom(f.d.Now().Add(-f.cfg.GapGrace).UnixNano(), f.cfg.Back)
	if !ok {
		return ""
	}
	return prefix + layout.SeqName(from, 0) // sorts before every identity that starts at from
}

// skew is how far a collector's clock, or a sample's time, may be behind the store's clock for a manifest still to
// be read.
const skew = 15 * time.Minute

// seen reports whether a key need not be read: the batch is known, or so old that its samples lie before the
// history window. An old one is counted in the ledger by the store's time.
func (f *Follower) seen(id identity.Batch, modified time.Time) bool {
	// Before any early return: being listed is what proves that the batch was accepted, whether it is read or not.
	f.restore.prove(id)
	if f.d.Live.Known(id) {
		return true
	}
	// Some listings have no time. Such a batch is read, since only its manifest tells its age.
	old := !modified.IsZero() && modified.Before(f.d.Now().Add(-f.d.History-skew))
	f.mu.Lock()
	defer f.mu.Unlock()
	if l := f.ledgers[id.BootOf()]; l != nil && l.Has(id.SeqStart, id.SeqEnd) {
		return true
	}
	if old {
		f.addLocked(id, modified.UnixNano())
	}
	return old
}

func (f *Follower) add(id identity.Batch, acceptedAt int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addLocked(id, acceptedAt)
}

func (f *Follower) addLocked(id identity.Batch, acceptedAt int64) {
	boot := id.BootOf()
	l := f.ledgers[boot]
	if l == nil {
		l = ledger.New(boot)
		f.ledgers[boot] = l
	}
	l.Add(ledger.Entry{Start: id.SeqStart, End: id.SeqEnd, AcceptedAt: acceptedAt})
}
