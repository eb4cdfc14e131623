package publish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// minDelay between two looks at a key.
const minDelay = time.Second

// objects decides about chunks and indexes of an hour: condemn first, then read the
// manifests, then delete. It gives the keys that have to wait.
func (x *collection) objects(ctx context.Context, h timegrid.Hour, keys []string, since int64) (later []string, err error) {
	var condemned []string
	seen := map[string]bool{}
	for _, key := range keys {
		if seen[key] {
			continue
		}
		seen[key] = true
		v, err := x.condemn(ctx, key, since)
		if err != nil {
			return nil, err
		}
		switch v.action {
		case Deleted: // may be, once the manifests are read
			condemned = append(condemned, key)
		case Later:
			later = append(later, key)
			x.log(key, Later, v.detail)
		default:
			x.log(key, v.action, v.detail)
		}
	}
	if len(condemned) == 0 {
		return later, nil
	}
	// Only now, after every condemnation is confirmed.
	named, err := x.c.named(ctx, h)
	if record.Opaque(err) {
		for _, key := range condemned { // what that record names is not known
			x.log(key, Later, err.Error())
		}
		return append(later, condemned...), nil
	}
	if err != nil {
		return nil, err
	}
	var stale error
	for _, key := range condemned {
		if by := named[key]; by != "" {
			x.log(key, Kept, "named by "+by)
			if x.epoch.wrote(key) {
				// It had no reference of that set, whose transaction added one before it committed.
				stale = fmt.Errorf("%w: %q, named by %q", ErrRefsStale, key, by)
				x.c.stale.Store(true)
			}
			continue
		}
		wait, err := x.remove(ctx, key)
		if err != nil {
			return nil, err
		}
		if wait {
			later = append(later, key)
		}
	}
	return later, stale
}

// verdict on one object: Deleted means condemned, so that it may be deleted.
type verdict struct {
	action Action
	detail string
}

// condemn makes sure that no transaction can refer to the object any more, if none that
// does can commit or has committed.
func (x *collection) condemn(ctx context.Context, key string, since int64) (verdict, error) {
	rec, err := x.c.refs(ctx, key)
	if err != nil {
		return verdict{}, err
	}
	if rec.Condemned {
		return verdict{action: Deleted}, nil
	}
	var dead []Txn
	for _, t := range rec.Txns {
		state, err := x.resolve(ctx, t, key, since)
		if err != nil {
			return verdict{}, err
		}
		switch state {
		case live:
			return verdict{Kept, "in use by " + string(t)}, x.forget(ctx, rec, dead)
		case undecided:
			return verdict{Later, "undecided: " + string(t)}, nil
		}
		dead = append(dead, t)
	}
	next := Record{Key: key, Condemned: true}
	err = x.c.cfg.Refs.Swap(ctx, x.epoch.ID, rec, next)
	if errors.Is(err, ErrChanged) {
		return verdict{Later, "its references changed"}, nil
	}
	return verdict{action: Deleted}, err
}

// forget drops dead transactions from the set of an object that stays, when they are many.
func (x *collection) forget(ctx context.Context, rec Record, dead []Txn) error {
	if len(dead) < forgetFrom {
		return nil
	}
	_ = x.c.cfg.Refs.Swap(ctx, x.epoch.ID, rec, rec.Without(dead)) // where it fails the set stays long, that is all
	return nil
}

const forgetFrom = 8

func (c *core) refs(ctx context.Context, key string) (Record, error) {
	rec, err := c.cfg.Refs.Get(ctx, key)
	if errors.Is(err, ErrNoRecord) {
		return Record{Key: key}, nil
	}
	return rec, err
}

type state uint8

const (
	undecided state = iota
	live
	dead
)

// resolve says whether the transaction names the object, may come to, or never will. An
// undecided one of keys that are long on the queue is aborted.
func (x *collection) resolve(ctx context.Context, t Txn, key string, since int64) (state, error) {
	r, err := x.record(ctx, t.ManifestKey())
	if record.Unreadable(err) {
		n, perr := layout.ParseBlockManifest(t.ManifestKey())
		if perr != nil {
			return live, nil
		}
		over, err := x.c.over(ctx, n)
		if err != nil {
			return 0, err
		}
		if over {
			return dead, nil
		}
		return live, nil // in doubt keep
	}
	if err != nil {
		return 0, err
	}
	if r == nil {
		if x.c.cfg.Clock.Now().UnixMilli()-since < x.c.cfg.Policy.AbortAfter.Milliseconds() {
			return undecided, nil
		}
		n, err := layout.ParseBlockManifest(t.ManifestKey())
		if err != nil {
			return live, nil
		}
		rec, err := x.c.abort(ctx, n, "collected")
		if err != nil {
			return 0, err
		}
		if rec.Aborted != nil {
			x.c.cfg.Events.abortedTxn(t)
		}
		r = &rec
	}
	// Committed by another plan, or without this object: this reference never counts.
	if r.Block != nil && r.Block.TransactionID == string(t) && r.Block.Names(key) {
		return live, nil
	}
	return dead, nil
}

// record reads a record, each once as long as they are few.
func (x *collection) record(ctx context.Context, key string) (*catalog.Record, error) {
	if r := x.known[key]; r != nil {
		return r, nil
	}
	r, _, err := x.c.record(ctx, key)
	if err == nil && r != nil {
		if x.known == nil || len(x.known) >= maxKnown {
			x.known = map[string]*catalog.Record{}
		}
		x.known[key] = r
	}
	return r, err
}

const maxKnown = 64

// remove deletes a condemned object. wait: it may be gone, and is looked at again.
func (x *collection) remove(ctx context.Context, key string) (wait bool, err error) {
	err = x.c.cfg.Store.Delete(ctx, key)
	switch {
	case err == nil:
		x.log(key, Deleted, "")
		return false, nil
	case errors.Is(err, objstore.ErrUnknown):
		x.log(key, DeleteUnknown, err.Error())
		return true, nil
	}
	return false, err
}
