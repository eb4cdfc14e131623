package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// minDelay is the least time between two checks of a key.
const minDelay = time.Second

// due is the key of an object that is to be decided, and since when it is on the queue, in Unix milliseconds.
type due struct {
	key   string
	since int64
}

// decideHour decides about chunks, indexes and plans of an hour, each once: it condemns the objects first, then reads the
// manifests, and only then deletes. It returns the keys that have to wait.
func (x *collection) decideHour(ctx context.Context, h timegrid.Hour, of *ofHour) (later []string, err error) {
	var condemned []string
	for part := range slices.Chunk(of.objects, MaxAdd) {
		gone, wait, err := x.condemn(ctx, part)
		if err != nil {
			return nil, err
		}
		condemned, later = append(condemned, gone...), append(later, wait...)
	}
	if len(condemned) == 0 && len(of.plans) == 0 {
		return later, nil
	}
	// The manifests are listed only now, when every condemnation is confirmed. A manifest that is created after
	// this listing can't name a condemned object: its transaction would have had to refer to the object first. In
	// the other order a commit could slip in between listing and condemning.
	seen, err := x.c.manifests(ctx, h)
	if record.Opaque(err) {
		for _, key := range slices.Concat(condemned, of.plans) { // the unreadable record may name any of them
			x.log(key, Later, err.Error())
			later = append(later, key)
		}
		return later, nil
	}
	if err != nil {
		return nil, err
	}
	var stale error
	unneeded := x.unneededPlans(seen, of.plans)
	for _, key := range condemned {
		by := seen.named[key]
		if by == "" {
			unneeded = append(unneeded, key)
			continue
		}
		x.log(key, Kept, "named by "+by)
		if x.epoch.wrote(key) {
			// A transaction refers to its objects before it commits, so a committed block without a reference
			// means that references were lost: the metadata store is an older copy.
			stale = fmt.Errorf("%w: %q, named by %q", ErrRefsStale, key, by)
			x.c.stale.Store(true)
		}
	}
	wait, err := x.delete(ctx, unneeded)
	if err != nil {
		return nil, err
	}
	return append(later, wait...), stale
}

// decision about one object: Deleted means that it may be condemned, and deleted then.
type decision struct {
	action Action
	detail string
}

// condemn makes sure that no transaction can refer to the objects any more, unless one that refers to them has
// committed or still can. It returns those that are condemned, and those that have to wait.
func (x *collection) condemn(ctx context.Context, keys []due) (condemned, later []string, err error) {
	names := make([]string, len(keys))
	for i := range keys {
		names[i] = keys[i].key
	}
	recs, err := x.c.cfg.Refs.Get(ctx, names...)
	if err != nil {
		return nil, nil, err
	}
	var next []Record
	for i, rec := range recs {
		// A condemnation is for good, so nothing has to be proven a second time.
		if rec.Condemned {
			condemned = append(condemned, rec.Key)
			continue
		}
		v, err := x.decide(ctx, rec, keys[i].since)
		if err != nil {
			return nil, nil, err
		}
		switch v.action {
		case Deleted:
			next = append(next, rec)
			continue
		case Later:
			later = append(later, rec.Key)
		}
		x.log(rec.Key, v.action, v.detail)
	}
	if len(next) == 0 {
		return condemned, later, nil
	}
	// Each is condemned by the version of its record: a reference that was added since the read keeps it.
	changed, err := x.c.cfg.Refs.Condemn(ctx, x.epoch.Token(), next...)
	if err != nil {
		return nil, nil, err
	}
	for _, rec := range next {
		if slices.Contains(changed, rec.Key) {
			x.log(rec.Key, Later, "its references changed")
			later = append(later, rec.Key)
			continue
		}
		condemned = append(condemned, rec.Key)
	}
	return condemned, later, nil
}

// decide says what may be done with an object by its references.
func (x *collection) decide(ctx context.Context, rec Record, since int64) (decision, error) {
	var gone []Txn
	for _, t := range rec.Txns {
		state, err := x.resolve(ctx, t, rec.Key, since)
		if err != nil {
			return decision{}, err
		}
		switch state {
		case live:
			return decision{Kept, "in use by " + string(t)}, x.dropDead(ctx, rec, gone)
		case undecided:
			return decision{Later, "undecided: " + string(t)}, nil
		}
		gone = append(gone, t)
	}
	return decision{action: Deleted}, nil
}

// dropDead drops dead transactions from the set of an object that stays, once there are many.
func (x *collection) dropDead(ctx context.Context, rec Record, dead []Txn) error {
	if len(dead) < manyDead {
		return nil
	}
	_ = x.c.cfg.Refs.Swap(ctx, x.epoch.Token(), rec, rec.Without(dead)) // a failure only leaves the set long
	return nil
}

const manyDead = 8

type state uint8

const (
	undecided state = iota
	live
	dead
)

// resolve says whether the transaction names the object, still may come to name it, or never will. It aborts an
// undecided transaction whose keys have been on the queue for long.
func (x *collection) resolve(ctx context.Context, t Txn, key string, since int64) (state, error) {
	n, err := layout.ParseBlockManifest(t.ManifestKey())
	if err != nil {
		return live, nil // not a transaction of ours: keep the object
	}
	r, err := x.record(ctx, n)
	if record.Unreadable(err) {
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

// record reads a record, nil for none, and remembers it as long as there are few: many objects of an hour name the same
// transactions. The listing that follows the condemnations then tells whether it is still the same.
func (x *collection) record(ctx context.Context, n catalog.Name) (*catalog.Record, error) {
	key := n.Key()
	if r := x.read[key]; r != nil {
		return r, nil
	}
	g, err := x.c.cache.Generation(ctx, catalog.Listed{Name: n, Info: objstore.Info{Key: key}})
	if err == nil {
		err = g.Err
	}
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if x.read == nil || len(x.read) >= maxRead {
		x.read = map[string]*catalog.Record{}
	}
	x.read[key] = &g.Record
	return &g.Record, nil
}

const maxRead = 64

// delete deletes condemned objects and plans. It returns those of which the outcome is unknown; they are checked again.
func (x *collection) delete(ctx context.Context, keys []string) (later []string, err error) {
	failed := make([]error, len(keys))
	err = x.c.cfg.each(ctx, len(keys), func(ctx context.Context, i int) error {
		failed[i] = x.c.cfg.Store.Delete(ctx, keys[i])
		if errors.Is(failed[i], objstore.ErrUnknown) {
			return nil
		}
		return failed[i]
	})
	for i, key := range keys {
		switch {
		case failed[i] != nil && errors.Is(failed[i], objstore.ErrUnknown):
			x.log(key, DeleteUnknown, failed[i].Error())
			later = append(later, key)
		case failed[i] == nil && err == nil:
			x.log(key, Deleted, "")
		}
	}
	return later, err
}
