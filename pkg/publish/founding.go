package publish

import (
	"context"
	"errors"
	"fmt"
	"io"

	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/record"
)

// FoundingKind is the kind of the record under layout.ReferencesKey.
var FoundingKind = record.Kind{Schema: "lightmetrics.references.v1", Title: "founding of reference sets", MaxBytes: 4096, Exact: true}

type foundingJSON struct {
	Number uint32 `json:"number"`
	ID     string `json:"id"`
}

// Marshal writes the canonical JSON of the number and the id.
func (f Founding) Marshal() []byte { return FoundingKind.Marshal(foundingJSON{f.Number, f.ID}) }

// ParseFounding reads what Marshal writes. Errors wrap record.ErrCorrupt or record.ErrNewerVersion.
func ParseFounding(b []byte) (Founding, error) {
	var j foundingJSON
	if err := FoundingKind.Unmarshal(b, &j); err != nil {
		return Founding{}, err
	}
	if len(j.ID) != 32 || j.Number >= MaxFoundings {
		return Founding{}, FoundingKind.Corrupt("", "number %d, id %.64q", j.Number, j.ID)
	}
	return Founding{Number: j.Number, ID: j.ID}, nil
}

func (c *core) readFounding(ctx context.Context) (Founding, objstore.Info, error) {
	return record.Read(ctx, c.cfg.Store, layout.ReferencesKey, FoundingKind, ParseFounding)
}

// founding is the one that both the object store and the metadata store have; else
// ErrRefsLost: the metadata store must be founded anew (Collector.Found).
func (c *core) founding(ctx context.Context) (Founding, error) {
	want, _, err := c.readFounding(ctx)
	if errors.Is(err, objstore.ErrNotFound) {
		return Founding{}, fmt.Errorf("%w: never founded", ErrRefsLost)
	}
	if err != nil {
		return Founding{}, err
	}
	got, err := c.refsFounding(ctx)
	switch {
	case err != nil:
		return Founding{}, err
	case got == nil || got.ID != want.ID || got.Number != want.Number:
		return Founding{}, fmt.Errorf("%w: founding %d (%s) is wanted", ErrRefsLost, want.Number, want.ID)
	}
	return *got, nil
}

// refsFounding reads the metadata store's; nil when it has none.
func (c *core) refsFounding(ctx context.Context) (*Founding, error) {
	f, err := c.cfg.Refs.Founding(ctx)
	if errors.Is(err, ErrNoRecord) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// Found makes the metadata store usable: on the first start, after it lost its content
// or was restored from a copy (then with force), and to finish what an earlier call left
// unsettled. It is safe at any time, in parallel too: at worst it costs generations of
// publications that are under way. rand gives the founding's id. Where object store and
// metadata store agree and are settled it does nothing, unless forced, or unless a step of
// this collector ended with ErrRefsStale.
//
// Reference sets of the former founding are gone, and with them those of transactions
// under way. So every transaction that has a plan and is not decided is aborted; before
// that is done nothing is deleted. Objects of the new founding have other keys.
func (c *Collector) Found(ctx context.Context, rand io.Reader, force bool) (Founding, error) {
	stale := c.stale.Load()
	f, err := c.found(ctx, rand, force || stale)
	if err != nil {
		return f, fmt.Errorf("found reference sets: %w", err)
	}
	if stale {
		c.stale.Store(false)
	}
	return f, nil
}

func (c *Collector) found(ctx context.Context, rand io.Reader, force bool) (Founding, error) {
	f, err := c.founding(ctx)
	switch {
	case err == nil && f.Settled && !force:
		return f, nil
	case err == nil && !force:
		return c.settle(ctx, f)
	case err != nil && !errors.Is(err, ErrRefsLost):
		return f, err
	}
	var id [16]byte
	if _, err := io.ReadFull(rand, id[:]); err != nil {
		return f, err
	}
	old, err := c.refsFounding(ctx)
	if err != nil {
		return f, err
	}
	if f, err = c.announce(ctx, fmt.Sprintf("%x", id)); err != nil {
		return f, err
	}
	// From here on the former founding's transactions can add nothing.
	err = c.cfg.Refs.Found(ctx, old, f)
	if err != nil && !errors.Is(err, ErrChanged) {
		return f, err
	}
	// Ours after a lost answer, or another's, which then has the last word.
	if f, err = c.founding(ctx); err != nil {
		return f, err
	}
	if f.Settled {
		return f, nil
	}
	return c.settle(ctx, f)
}

// announce writes the next founding's number and id to the object store.
func (c *Collector) announce(ctx context.Context, id string) (Founding, error) {
	f := Founding{ID: id}
	old, info, err := c.readFounding(ctx)
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		_, err = c.cfg.Store.Create(ctx, layout.ReferencesKey, f.Marshal(), jsonContent)
	case err == nil:
		if f.Number = old.Number + 1; f.Number >= MaxFoundings {
			return f, fmt.Errorf("%d foundings", f.Number)
		}
		_, err = c.cfg.Store.Replace(ctx, layout.ReferencesKey, f.Marshal(), info.ETag, jsonContent)
	}
	if err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrPreconditionFailed) {
		return f, err
	}
	// Ours, also after a lost answer, or else another's: the caller tries again later.
	there, _, err := c.readFounding(ctx)
	if err == nil && there != f {
		err = fmt.Errorf("%w: another founding is under way", ErrChanged)
	}
	return f, err
}
