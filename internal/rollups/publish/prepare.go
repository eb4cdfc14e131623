package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// object is a chunk or an index that is being published.
type object struct {
	name     layout.RollupObjectName
	body     Content
	ready    bool // the store has it with these bytes
	referred bool
}

func newObject(key string, body Content) *object {
	n, _ := layout.ParseRollupObject(key) // can't fail: the key was just built
	return &object{name: n, body: body}
}

// ErrNoGeneration means that every generation of an object that may be tried is condemned or corrupt.
var ErrNoGeneration = errors.New("no usable generation of an object")

// nextGeneration moves on to the object's next generation.
func (t *transaction) nextGeneration(o *object, why Skip) error {
	t.p.cfg.Events.generationSkipped(o.name.Key(), why)
	o.ready, o.referred = false, false
	// What an earlier era may have condemned and forgotten is not made again: its delete may still be under way.
	o.name.Generation = max(o.name.Generation+1, t.epoch.FirstGeneration())
	// A bound, so that a store that answers every create with a damaged object can't keep a publication busy for
	// ever.
	if o.name.Generation >= t.epoch.FirstGeneration()+uint32(t.p.cfg.Policy.Generations) {
		return fmt.Errorf("%q: %w", o.name.Key(), ErrNoGeneration)
	}
	return nil
}

// prepare makes sure that every object is in the store.
func (b *batch) prepare(ctx context.Context) error {
	for _, t := range b.open {
		for _, o := range t.objects {
			if err := t.put(ctx, o); err != nil {
				return t.named(err)
			}
		}
	}
	return nil
}

func (t *transaction) put(ctx context.Context, o *object) error {
	if o.ready {
		return nil
	}
	body, err := o.body.Load()
	if err != nil {
		return fmt.Errorf("load what %q is to hold: %w", o.name.Key(), err)
	}
	for !o.ready {
		key := o.name.Key()
		_, err := t.p.cfg.Store.Create(ctx, key, body, objstore.PutOptions{
			SHA256: o.name.SHA256, ContentType: "application/zstd",
			Tags: map[string]string{"status": "pending", "transaction_id": string(t.id)},
		})
		if err != nil && errors.Is(err, objstore.ErrUnknown) {
			t.touched = append(t.touched, key) // the create may still be applied
		}
		switch {
		case errors.Is(err, objstore.ErrExists):
			why, err := t.p.compare(ctx, key, o, t.pub.Verify)
			if err != nil {
				return err
			}
			if why != "" {
				if err := t.nextGeneration(o, why); err != nil {
					return err
				}
				continue
			}
			t.p.cfg.Events.objectExists(key)
		case err != nil:
			return err
		default:
			t.p.cfg.Events.objectCreated(key, len(body))
		}
		// Also when it existed: a publication of somebody else that failed may have left it, and then nobody else
		// would collect it.
		t.touched = append(t.touched, key)
		o.ready = true
	}
	return nil
}

// compare compares the stored object with the body and returns "" when they are equal. With read it reads the
// object even if the store keeps a checksum.
func (c *core) compare(ctx context.Context, key string, o *object, read bool) (Skip, error) {
	info, err := c.cfg.Store.Head(ctx, key)
	if err == nil && (read || info.SHA256.IsZero()) && info.Size == int64(o.body.size) {
		var b []byte
		b, info, err = c.cfg.Store.Get(ctx, key, objstore.GetOptions{Limit: int64(o.body.size) + 1})
		info.SHA256 = identity.Sum(b)
	}
	switch {
	case errors.Is(err, objstore.ErrNotFound):
		return SkipGone, nil
	case err != nil && !objstore.Unreadable(err):
		return "", err
	case err != nil || info.Size != int64(o.body.size) || info.SHA256 != o.name.SHA256:
		return SkipCorrupt, nil
	}
	return "", nil
}

// refer puts the transactions into the reference sets of their objects, as many at a time as one request takes. If an
// object is condemned, its next generation is written and referred to instead.
func (b *batch) refer(ctx context.Context) error {
	for {
		add, of := b.unreferred()
		if len(add) == 0 {
			return nil
		}
		err := b.p.cfg.Refs.Add(ctx, of[0].epoch.Token(), add...)
		var condemned *CondemnedError
		switch {
		case errors.As(err, &condemned):
			if err := replaceCondemned(ctx, add, of, condemned.Keys); err != nil {
				return err
			}
		case errors.Is(err, ErrEpochMismatch):
			b.p.agreed.Store(nil) // the next check finds out before anything is written
			b.outdated = true
			return of[0].named(err)
		case err != nil:
			return of[0].named(err)
		default:
			for i, t := range of {
				t.referred(add[i].Keys)
			}
		}
	}
}

// unreferred gives the next references that are to be added, and the transaction of each.
func (b *batch) unreferred() (add []Addition, of []*transaction) {
	room := MaxAdd
	for _, t := range b.open {
		if keys := t.unreferred(room); len(keys) > 0 {
			add, of = append(add, Addition{t.id, keys}), append(of, t)
			room -= len(keys)
		}
	}
	return add, of
}

// unreferred gives keys of up to limit objects that the transaction does not refer to yet.
func (t *transaction) unreferred(limit int) (keys []string) {
	for _, o := range t.objects {
		// Two outputs with equal bytes share one object, and a key must be named once.
		if key := o.name.Key(); !o.referred && len(keys) < limit && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// referred notes that the transaction refers to the objects.
func (t *transaction) referred(keys []string) {
	for _, o := range t.objects {
		if slices.Contains(keys, o.name.Key()) {
			o.referred = true
		}
	}
}

// replaceCondemned replaces condemned objects of what was to be added by their next generations.
func replaceCondemned(ctx context.Context, add []Addition, of []*transaction, gone []string) error {
	renewed := 0
	for i, t := range of {
		for _, o := range t.objects {
			key := o.name.Key()
			if !slices.Contains(gone, key) || !slices.Contains(add[i].Keys, key) {
				continue
			}
			renewed++
			if err := t.nextGeneration(o, SkipCondemned); err != nil {
				return t.named(err)
			}
			if err := t.put(ctx, o); err != nil {
				return t.named(err)
			}
		}
	}
	// Without this check an answer that names no key of the batch would be asked again for ever.
	if renewed == 0 {
		return of[0].named(fmt.Errorf("reference sets: %w, but none of those that were asked for", ErrCondemned))
	}
	return nil
}

// promote tags the objects as committed, for operators and lifecycle rules. Best effort: nothing reads the tags.
func (t *transaction) promote(ctx context.Context) {
	tagger, ok := t.p.cfg.Store.(objstore.Tagger)
	if !ok {
		return
	}
	for _, o := range t.objects {
		key := o.name.Key()
		if err := tagger.SetTags(ctx, key, map[string]string{"status": "committed", "transaction_id": string(t.id)}); err != nil {
			return // the remaining tags would most likely fail as well
		}
	}
}
