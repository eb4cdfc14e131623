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

// book keeps the ledgers, one for each boot, over their snapshots in the store.
type book struct {
	store objstore.Store
	log   *slog.Logger
	limit int
	// barrier returns once what the ledgers know stands in the intake; before each write.
	barrier func(context.Context) error

	mu    sync.Mutex
	boots map[identity.Boot]*account
	uses  int64
}

// account is one boot's place in the book.
type account struct {
	boot    identity.Boot
	lastUse int64 // guarded by book.mu

	mu    sync.Mutex
	l     *ledger.Ledger // nil: not read yet, or put away
	etag  string         // of the snapshot; empty when there is none
	dirty bool
}

func newBook(store objstore.Store, log *slog.Logger, limit int) *book {
	return &book{
		store: store, log: log, limit: limit, boots: map[identity.Boot]*account{},
		barrier: func(context.Context) error { return nil },
	}
}

// open gives the boot's account, locked and read.
func (b *book) open(ctx context.Context, boot identity.Boot) (*account, error) {
	b.mu.Lock()
	a := b.boots[boot]
	if a == nil {
		a = &account{boot: boot}
		b.boots[boot] = a
	}
	b.uses++
	a.lastUse = b.uses
	b.mu.Unlock()

	a.mu.Lock()
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

// read gets a snapshot. One that is absent or can't be read is an empty ledger: the
// next audit lists the boot from its start.
func (b *book) read(ctx context.Context, boot identity.Boot) (*ledger.Ledger, string, error) {
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
	if err != nil && info.ETag == "" { // not even its bytes: its ETag lets it be replaced
		head, herr := b.store.Head(ctx, key)
		if herr != nil {
			return nil, "", herr
		}
		info = head
	}
	if err != nil {
		b.log.Error("ledger snapshot can't be read; it is built anew", "key", key, "error", err)
		return ledger.New(boot), info.ETag, nil
	}
	return l, info.ETag, nil
}

// add counts an identity. fresh says that it was not indexed until now. counted is
// called with the change before a snapshot can hold it.
func (b *book) add(ctx context.Context, boot identity.Boot, e ledger.Entry, fresh bool, counted func(ledger.Change)) (ledger.Change, error) {
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

// replace puts a ledger that was built anew from a full listing in place.
func (b *book) replace(ctx context.Context, rebuilt *ledger.Ledger) error {
	a, err := b.open(ctx, rebuilt.Boot())
	if err != nil {
		return err
	}
	defer a.mu.Unlock()
	before := a.l.Marshal()
	rebuilt.Rebase(a.l)
	after := rebuilt.Marshal()
	a.l = rebuilt
	a.dirty = a.dirty || !bytes.Equal(before, after)
	return nil
}

// flush writes all changed ledgers and puts away what has not been used for long.
func (b *book) flush(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(flushConcurrency)
	for _, a := range b.accounts() {
		g.Go(func() error { return b.save(ctx, a) })
	}
	err := g.Wait()
	b.evict()
	return err
}

// save writes one ledger by If-Match. After a lost race it reads, merges and tries again.
func (b *book) save(ctx context.Context, a *account) error {
	key := layout.Ledger(a.boot)
	for range saveTries {
		a.mu.Lock()
		if !a.dirty || a.l == nil {
			a.mu.Unlock()
			return nil
		}
		body := a.l.Marshal()
		etag := a.etag
		a.dirty = false
		a.mu.Unlock()
		var info objstore.Info
		err := b.barrier(ctx)
		if err == nil {
			failpoint.Hit("reconciler.ledger.write.before")
			info, err = b.write(ctx, key, body, etag)
		}
		failpoint.Hit("reconciler.ledger.write.after")
		lost := errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrPreconditionFailed)
		a.mu.Lock()
		switch {
		case err == nil:
			a.etag = info.ETag
		case lost:
			err = b.merge(ctx, a)
		}
		if err != nil {
			a.dirty = true // an unknown outcome too: the next If-Match finds out
		}
		a.mu.Unlock()
		if err != nil || !lost {
			return err
		}
	}
	return nil // still dirty; the next flush goes on
}

func (b *book) write(ctx context.Context, key string, body []byte, etag string) (objstore.Info, error) {
	o := objstore.PutOptions{ContentType: "application/json"}
	if etag == "" {
		return b.store.Create(ctx, key, body, o)
	}
	return b.store.Replace(ctx, key, body, etag, o)
}

// merge takes in what the store has; a is locked.
func (b *book) merge(ctx context.Context, a *account) error {
	theirs, etag, err := b.read(ctx, a.boot)
	if err != nil {
		return err
	}
	a.l.Merge(theirs)
	a.etag = etag
	a.dirty = a.dirty || !bytes.Equal(a.l.Marshal(), theirs.Marshal())
	return nil
}

// evict puts the longest unused clean ledgers away.
func (b *book) evict() {
	list := b.accounts()
	var held []*account
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
	slices.SortFunc(held, func(x, y *account) int { return cmp.Compare(x.lastUse, y.lastUse) })
	b.mu.Unlock()
	for _, a := range held[:n] {
		a.mu.Lock()
		if !a.dirty {
			a.l, a.etag = nil, ""
		}
		a.mu.Unlock()
	}
}

func (b *book) accounts() []*account {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*account, 0, len(b.boots))
	for _, a := range b.boots {
		list = append(list, a)
	}
	return list
}

// after lists the boots that come after boot, at most limit, by agent and boot; only of agent when it is set.
func (b *book) after(boot identity.Boot, agent string, limit int) []identity.Boot {
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
