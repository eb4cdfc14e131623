package publish

import (
	"context"
	"errors"
	"fmt"
	"io"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
)

// EpochKind is the kind of the record under layout.ReferencesKey.
var EpochKind = record.Kind{Schema: "lightmetrics.references.v1", Title: "epoch of reference sets", MaxBytes: 4096, Exact: true}

type epochJSON struct {
	Number uint32 `json:"number"`
	ID     string `json:"id"`
}

// Marshal writes the canonical JSON of the number and the id.
func (f Epoch) Marshal() []byte { return EpochKind.Marshal(epochJSON{f.Number, f.ID}) }

// ParseEpoch reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseEpoch(b []byte) (Epoch, error) {
	var j epochJSON
	if err := EpochKind.Unmarshal(b, &j); err != nil {
		return Epoch{}, err
	}
	if len(j.ID) != 32 || j.Number >= MaxEpochs {
		return Epoch{}, EpochKind.Corrupt("", "number %d, id %.64q", j.Number, j.ID)
	}
	return Epoch{Number: j.Number, ID: j.ID}, nil
}

func (c *core) readEpoch(ctx context.Context) (Epoch, objstore.Info, error) {
	return record.Read(ctx, c.cfg.Store, layout.ReferencesKey, EpochKind, ParseEpoch)
}

// epoch returns the epoch that object store and metadata store agree on; else ErrEpochMismatch: the metadata store
// needs a new epoch (Collector.InitEpoch).
func (c *core) epoch(ctx context.Context) (Epoch, error) {
	want, _, err := c.readEpoch(ctx)
	return c.epochLike(ctx, want, err)
}

// epochLike returns the epoch of the metadata store, which must be the one that was read from the object store with err.
func (c *core) epochLike(ctx context.Context, want Epoch, err error) (Epoch, error) {
	if errors.Is(err, objstore.ErrNotFound) {
		return Epoch{}, fmt.Errorf("%w: no epoch was ever begun", ErrEpochMismatch)
	}
	if err != nil {
		return Epoch{}, err
	}
	got, err := c.storedEpoch(ctx)
	switch {
	case err != nil:
		return Epoch{}, err
	case got == nil || got.ID != want.ID || got.Number != want.Number:
		return Epoch{}, fmt.Errorf("%w: epoch %d (%s) is wanted", ErrEpochMismatch, want.Number, want.ID)
	}
	return *got, nil
}

// currentEpoch is epoch, but asks the metadata store only where the object store has another one than both agreed on last.
// That is enough, because Add compares the epoch in its own transaction.
func (p *Publisher) currentEpoch(ctx context.Context) (Epoch, error) {
	want, _, err := p.readEpoch(ctx)
	if f := p.agreed.Load(); err == nil && f != nil && f.ID == want.ID && f.Number == want.Number {
		return *f, nil
	}
	f, err := p.epochLike(ctx, want, err)
	if err == nil {
		p.agreed.Store(&f)
	}
	return f, err
}

// storedEpoch reads the epoch of the metadata store; nil when it has none.
func (c *core) storedEpoch(ctx context.Context) (*Epoch, error) {
	f, err := c.cfg.Refs.Epoch(ctx)
	if errors.Is(err, ErrNoRecord) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// InitEpoch makes the metadata store usable: on the first start, after it lost its content or was
// restored from a copy (then with force), and to finish what an earlier call left undecided. It is safe
// at any time and in parallel: at worst it costs running publications their generation. rand gives the
// epoch's id. When both stores agree and the epoch is decided it does nothing, unless forced, or unless
// a step of this collector ended with ErrRefsStale.
//
// The reference sets of the former epoch are gone, and with them those of running transactions. So every
// transaction that has a plan and is not decided gets aborted; nothing is deleted before that is done.
// Objects of the new epoch have other keys, so a delete of the old epoch that is still in flight can't hit them.
func (c *Collector) InitEpoch(ctx context.Context, rand io.Reader, force bool) (Epoch, error) {
	stale := c.stale.Load()
	f, err := c.initEpoch(ctx, rand, force || stale)
	if err != nil {
		return f, fmt.Errorf("begin an epoch of the reference sets: %w", err)
	}
	if stale {
		c.stale.Store(false)
	}
	return f, nil
}

func (c *Collector) initEpoch(ctx context.Context, rand io.Reader, force bool) (Epoch, error) {
	f, err := c.epoch(ctx)
	switch {
	case err == nil && f.Decided && !force:
		return f, nil
	case err == nil && !force:
		return c.abortUndecided(ctx, f)
	case err != nil && !errors.Is(err, ErrEpochMismatch):
		return f, err
	}
	// The object store is reported first: it is the one that is not lost with the metadata store, and gives the next
	// number.
	var id [16]byte
	if _, err := io.ReadFull(rand, id[:]); err != nil {
		return f, err
	}
	old, err := c.storedEpoch(ctx)
	if err != nil {
		return f, err
	}
	if f, err = c.announce(ctx, fmt.Sprintf("%x", id)); err != nil {
		return f, err
	}
	// From here on a transaction of the former epoch can add no reference.
	err = c.cfg.Refs.InitEpoch(ctx, old, f)
	if err != nil && !errors.Is(err, ErrChanged) {
		return f, err
	}
	// ErrChanged may be this call's own write after a lost answer, or another collector's, which is as good.
	if f, err = c.epoch(ctx); err != nil {
		return f, err
	}
	if f.Decided {
		return f, nil
	}
	return c.abortUndecided(ctx, f)
}

// announce writes the number and id of the next epoch to the object store.
func (c *Collector) announce(ctx context.Context, id string) (Epoch, error) {
	f := Epoch{ID: id}
	old, info, err := c.readEpoch(ctx)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		_, err = c.cfg.Store.Create(ctx, layout.ReferencesKey, f.Marshal(), jsonContent)
	case err == nil:
		if f.Number = old.Number + 1; f.Number >= MaxEpochs {
			return f, fmt.Errorf("%d epochs", f.Number)
		}
		_, err = c.cfg.Store.Replace(ctx, layout.ReferencesKey, f.Marshal(), info.ETag, jsonContent)
	}
	if err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrPreconditionFailed) {
		return f, err
	}
	// Read back what is there: this call's own record also after a lost answer. If it is another collector's, the
	// caller tries again later.
	there, _, err := c.readEpoch(ctx)
	if err == nil && there != f {
		err = fmt.Errorf("%w: another epoch is being begun", ErrChanged)
	}
	return f, err
}
