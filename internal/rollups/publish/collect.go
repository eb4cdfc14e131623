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

// minDelay is the least time between two checks of a key.
const minDelay = time.Second

// decideObjects decides about chunks and indexes of an hour: it condemns them first, then reads the manifests, and only
// then deletes. It returns the keys that have to wait.
func (x *collection) decideObjects(ctx context.Context, h timegrid.Hour, keys []string, since int64) (later []string, err error) {
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
		case Deleted: // it is condemned; the manifests decide whether it may be deleted
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
	// The manifests are listed only now, when every condemnation is confirmed. A manifest that is created after
	// this listing can't name a condemned object: its transaction would have had to refer to the object first. In
	// the other order a commit could slip in between listing and condemning.
	named, err := x.c.namedObjects(ctx, h)
	if record.Opaque(err) {
		for _, key := range condemned { // the unreadable record may name any of them
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
				// A transaction refers to its objects before it commits, so a committed block without a reference
				// means that references were lost: the metadata store is an older copy.
				stale = fmt.Errorf("%w: %q, named by %q", ErrRefsStale, key, by)
				x.c.stale.Store(true)
			}
			continue
		}
		wait, err := x.deleteObject(ctx, key)
		if err != nil {
			return nil, err
		}
		if wait {
			later = append(later, key)
		}
	}
	return later, stale
}

// decision about one object: Deleted means condemned, so that it may be deleted.
type decision struct {
	action Action
	detail string
}

// condemn makes sure that no transaction can refer to the object any more, unless one that refers to it has
// committed or still can.
func (x *collection) condemn(ctx context.Context, key string, since int64) (decision, error) {
	rec, err := x.c.refs(ctx, key)
	if err != nil {
		return decision{}, err
	}
	// A condemnation is for good, so nothing has to be proven a second time.
	if rec.Condemned {
		return decision{action: Deleted}, nil
	}
	var dead []Txn
	for _, t := range rec.Txns {
		state, err := x.resolve(ctx, t, key, since)
		if err != nil {
			return decision{}, err
		}
		switch state {
		case live:
			return decision{Kept, "in use by " + string(t)}, x.dropDead(ctx, rec, dead)
		case undecided:
			return decision{Later, "undecided: " + string(t)}, nil
		}
		dead = append(dead, t)
	}
	next := Record{Key: key, Condemned: true}
	// The swap is by the record's version: a reference that was added since the read makes it fail.
	err = x.c.cfg.Refs.Swap(ctx, x.epoch.ID, rec, next)
	if errors.Is(err, ErrChanged) {
		return decision{Later, "its references changed"}, nil
	}
	return decision{action: Deleted}, err
}

// dropDead drops dead transactions from the set of an object that stays, once there are many.
func (x *collection) dropDead(ctx context.Context, rec Record, dead []Txn) error {
	if len(dead) < manyDead {
		return nil
	}
	_ = x.c.cfg.Refs.Swap(ctx, x.epoch.ID, rec, rec.Without(dead)) // a failure only leaves the set long
	return nil
}

const manyDead = 8

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

// resolve says whether the transaction names the object, still may come to name it, or never will. It aborts an
// undecided transaction whose keys have been on the queue for long.
func (x *collection) resolve(ctx context.Context, t Txn, key string, since int64) (state, error) {
	r, err := x.record(ctx, t.ManifestKey())
	if record.Unreadable(err) {
		n, perr := layout.ParseBlockManifest(t.ManifestKey())
		if perr != nil {
			return live, nil // not a transaction of ours: keep the object
		}
		// The unreadable manifest may name the object. It matters only while readers can reach it: a higher
		// committed generation hides it for good.
		over, err := x.c.isSuperseded(ctx, n)
		if err != nil {
			return 0, err
		}
		if over {
			return dead, nil
		}
		return live, nil // keep the object, as the record may name it
	}
	if err != nil {
		return 0, err
	}
	if r == nil {
		// The transaction may still be running. Deciding it early is safe, as the manifest's key decides, but
		// would cost the worker its generation.
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
	// A generation that was committed by another plan, or without this object, never uses this reference.
	if r.Block != nil && r.Block.TransactionID == string(t) && r.Block.Names(key) {
		return live, nil
	}
	return dead, nil
}

// record reads a record and remembers it as long as there are few: many objects of an hour name the same
// transactions.
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

// deleteObject deletes a condemned object. With wait the outcome is unknown and the key is checked again.
func (x *collection) deleteObject(ctx context.Context, key string) (wait bool, err error) {
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
