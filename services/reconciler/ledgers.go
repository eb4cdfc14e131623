package reconciler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Bounds of writing snapshots.
const (
	saveTries        = 4 // lost races against another reconciler
	flushConcurrency = 8
)

// ledgerCache keeps the ledgers, one for each boot, in memory over their snapshots in the store.
type ledgerCache struct {
	store objstore.Store
	log   *slog.Logger
	limit int
	// flushIntake returns once every batch in the ledgers is written to the intake. It is called before each snapshot.
	flushIntake func(context.Context) error

	mu    sync.Mutex
	boots map[identity.Boot]*cachedLedger
	uses  int64
}

// cachedLedger is the ledger of one boot, and the state of its snapshot.
type cachedLedger struct {
	boot    identity.Boot
	lastUse int64 // guarded by ledgerCache.mu

	mu    sync.Mutex
	l     *ledger.Ledger // nil: not read yet, or evicted
	etag  string         // of the snapshot; empty when there is none
	dirty bool
}

func newLedgerCache(store objstore.Store, log *slog.Logger, limit int) *ledgerCache {
	return &ledgerCache{
		store: store, log: log, limit: limit, boots: map[identity.Boot]*cachedLedger{},
		flushIntake: func(context.Context) error { return nil },
	}
}

// open returns the boot's ledger, read and locked; the caller unlocks it.
func (b *ledgerCache) open(ctx context.Context, boot identity.Boot) (*cachedLedger, error) {
	b.mu.Lock()
	a := b.boots[boot]
	if a == nil {
		a = &cachedLedger{boot: boot}
		b.boots[boot] = a
	}
	b.uses++
	a.lastUse = b.uses
	b.mu.Unlock()

	a.mu.Lock()
	// Read without the cache's lock, so that one slow read does not block other boots.
	if a.l == nil {
		l, etag, err := b.read(ctx, boot)
		if err != nil {
			a.mu.Unlock()
			return nil, err
		}
		a.l, a.etag = l, etag
	}
	return a, nil
}

// read reads a snapshot. If it is absent or can't be read, the ledger is empty: the
// next audit lists the boot from its start.
func (b *ledgerCache) read(ctx context.Context, boot identity.Boot) (*ledger.Ledger, string, error) {
	key := layout.Ledger(boot)
	l, info, err := record.Read(ctx, b.store, key, ledger.SnapshotKind, ledger.Parse)
	if errors.Is(err, objstore.ErrNotFound) {
		return ledger.New(boot), "", nil
	}
	if err == nil && l.Boot() != boot {
		err = ledger.SnapshotKind.Corrupt(key, "it is of boot %s", l.Boot())
	}
	if err != nil && !record.Unreadable(err) {
		return nil, "", err
	}
	if err != nil && info.ETag == "" { // its bytes can't be read either; the ETag is needed to replace it
		head, herr := b.store.Head(ctx, key)
		if herr != nil {
			return nil, "", herr
		}
		info = head
	}
	if err != nil {
		b.log.Error("ledger snapshot can't be read; it is rebuilt", "key", key, "error", err)
		return ledger.New(boot), info.ETag, nil
	}
	return l, info.ETag, nil
}

// add adds an identity. fresh says that it was not indexed before. counted is called with the
// change, under the ledger's lock and so before any snapshot can contain it.
func (b *ledgerCache) add(ctx context.Context, boot identity.Boot, e ledger.Entry, fresh bool, counted func(ledger.Change)) (ledger.Change, error) {
	a, err := b.open(ctx, boot)
	if err != nil {
		return ledger.Change{}, err
	}
	defer a.mu.Unlock()
	var c ledger.Change
	if fresh {
		c = a.l.AddNew(e)
	} else {
		c = a.l.Add(e)
	}
	a.dirty = a.dirty || c.Kind == ledger.Added
	counted(c)
	return c, nil
}

// replace replaces the boot's ledger with one that was rebuilt from a full listing.
func (b *ledgerCache) replace(ctx context.Context, rebuilt *ledger.Ledger) error {
	a, err := b.open(ctx, rebuilt.Boot())
	if err != nil {
		return err
	}
	defer a.mu.Unlock()
	before := a.l.Marshal()
	// Batches that were accepted during the listing are only in the old ledger.
	rebuilt.Rebase(a.l)
	after := rebuilt.Marshal()
	a.l = rebuilt
	a.dirty = a.dirty || !bytes.Equal(before, after)
	return nil
}

// flush writes all changed ledgers and evicts those that were not used for the longest time.
func (b *ledgerCache) flush(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(flushConcurrency)
	for _, a := range b.all() {
		g.Go(func() error { return b.save(ctx, a) })
	}
	err := g.Wait()
	b.evict()
	return err
}

// save writes one ledger with If-Match. After a lost race it reads, merges and tries again.
func (b *ledgerCache) save(ctx context.Context, a *cachedLedger) error {
	key := layout.Ledger(a.boot)
	for range saveTries {
		a.mu.Lock()
		if !a.dirty || a.l == nil {
			a.mu.Unlock()
			return nil
		}
		body := a.l.Marshal()
		etag := a.etag
		// Before the write and not after it: a change during the write makes the ledger dirty again.
		a.dirty = false
		a.mu.Unlock()
		var info objstore.Info
		err := b.flushIntake(ctx)
		if err == nil {
			failpoint.Hit("reconciler.ledger.write.before")
			info, err = b.write(ctx, key, body, etag)
		}
		failpoint.Hit("reconciler.ledger.write.after")
		// Another reconciler has written the snapshot since it was read.
		lost := errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrPreconditionFailed)
		a.mu.Lock()
		switch {
		case err == nil:
			a.etag = info.ETag
		case lost:
			err = b.merge(ctx, a)
		}
		if err != nil {
			a.dirty = true // an unknown outcome, too: the next If-Match shows whether it was written
		}
		a.mu.Unlock()
		if err != nil || !lost {
			return err
		}
	}
	return nil // still dirty; the next flush continues
}

func (b *ledgerCache) write(ctx context.Context, key string, body []byte, etag string) (objstore.Info, error) {
	o := objstore.PutOptions{ContentType: "application/json"}
	if etag == "" {
		return b.store.Create(ctx, key, body, o)
	}
	return b.store.Replace(ctx, key, body, etag, o)
}

// merge merges the store's snapshot into a. The caller holds a.mu.
func (b *ledgerCache) merge(ctx context.Context, a *cachedLedger) error {
	theirs, etag, err := b.read(ctx, a.boot)
	if err != nil {
		return err
	}
	a.l.Merge(theirs)
	a.etag = etag
	a.dirty = a.dirty || !bytes.Equal(a.l.Marshal(), theirs.Marshal())
	return nil
}

// evict drops clean ledgers from memory, the least recently used first, until at most limit are left.
func (b *ledgerCache) evict() {
	list := b.all()
	var held []*cachedLedger
	for _, a := range list {
		a.mu.Lock()
		if a.l != nil && !a.dirty {
			held = append(held, a)
		}
		a.mu.Unlock()
	}
	n := len(held) - b.limit
	if n <= 0 {
		return
	}
	b.mu.Lock()
	slices.SortFunc(held, func(x, y *cachedLedger) int { return cmp.Compare(x.lastUse, y.lastUse) })
	b.mu.Unlock()
	for _, a := range held[:n] {
		a.mu.Lock()
		if !a.dirty {
			a.l, a.etag = nil, ""
		}
		a.mu.Unlock()
	}
}

func (b *ledgerCache) all() []*cachedLedger {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*cachedLedger, 0, len(b.boots))
	for _, a := range b.boots {
		list = append(list, a)
	}
	return list
}

// after lists at most limit boots after the given one, sorted by agent and boot; only those of agent if it is set.
func (b *ledgerCache) after(boot identity.Boot, agent string, limit int) []identity.Boot {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []identity.Boot
	for o := range b.boots {
		if (agent == "" || o.Agent == agent) && o.Compare(boot) > 0 {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, identity.Boot.Compare)
	return list[:min(limit, len(list))]
}
