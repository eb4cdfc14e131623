package publish

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// ErrEpochOpen means that transactions of older epochs are not all decided; nothing is deleted.
var ErrEpochOpen = errors.New("transactions of older epochs of the reference sets are not all decided")

// Action is what a collection did with a key. Values are stable.
type Action string

// Actions.
const (
	Deleted Action = "DELETED"
	// DeleteUnknown: the object may be gone, now or later; its record stays condemned.
	DeleteUnknown Action = "DELETE_UNKNOWN"
	RemovedBlock  Action = "REMOVED_BLOCK" // a superseded block's record; its objects follow
	Kept          Action = "KEPT"          // in use, or not ours: off the queue
	Later         Action = "LATER"         // has to wait, and is checked again
)

// Entry is one line of what a collection did.
type Entry struct {
	Key    string
	Action Action
	Detail string
}

// Report of a step.
type Report struct {
	Items   int // taken from the queue
	Entries []Entry
}

// Collector collects what publications leave behind. Everything that it decides is proven again from the stores,
// so it is safe for concurrent use, and two collectors at work at once are harmless.
type Collector struct {
	core
	// cache has what records name: a listing tells which of them have changed.
	cache *catalog.Reader
	// stale is set when this collector has seen that the metadata store is an older copy.
	stale atomic.Bool
}

// NewCollector checks the settings; it makes no request.
func NewCollector(c Config) (*Collector, error) {
	k, err := newCore(c)
	if err != nil {
		return nil, err
	}
	return &Collector{core: k, cache: catalog.NewReader(catalog.ReaderConfig{Read: k.read, Trim: trim, Limit: maxRemembered})}, nil
}

// Step works off up to limit due items of the queue. On an error the items that were not finished stay on the
// queue.
func (c *Collector) Step(ctx context.Context, limit int) (Report, error) {
	x := &collection{c: c}
	if err := x.step(ctx, limit); err != nil {
		return x.report, fmt.Errorf("collect: %w", err)
	}
	return x.report, nil
}

// collection is one step.
type collection struct {
	c      *Collector
	epoch  Epoch
	report Report
	// read are records that were read in this step. A record decides for good, except that a block may be removed
	// meanwhile; its objects are then kept until the next step.
	read   map[string]*catalog.Record
	failed int // items and hours
}

func (x *collection) step(ctx context.Context, limit int) error {
	items, err := x.c.cfg.Queue.Due(ctx, x.c.cfg.Clock.Now(), limit)
	if err != nil || len(items) == 0 {
		return err
	}
	if x.epoch, err = x.c.epoch(ctx); err != nil {
		return err
	}
	// The reference sets of this epoch do not know transactions of older ones that are still running. Until all of
	// those are aborted, an object without references may still become part of a commit.
	if !x.epoch.Decided {
		return ErrEpochOpen
	}
	taken := make([]*taking, len(items))
	for i := range items {
		taken[i] = &taking{item: items[i]}
		taken[i].err = x.removeBlocks(ctx, taken[i])
		if x.fails(ctx, taken[i].err) {
			return errorsOf(taken)
		}
	}
	// The objects and plans of an hour are decided together, whichever items they are of.
	hours, of := byHour(taken)
	failed, later := map[timegrid.Hour]error{}, map[string]bool{}
	for i, h := range hours {
		wait, err := x.decideHour(ctx, h, of[h])
		for _, key := range wait {
			later[key] = true
		}
		if failed[h] = err; x.fails(ctx, err) {
			for _, h := range hours[i+1:] {
				failed[h] = fmt.Errorf("not decided: %w", err)
			}
			break
		}
	}
	for _, t := range taken {
		// What an hour has failed with counted there.
		if t.decided(failed, later); t.err != nil {
			continue
		}
		if t.err = x.finish(ctx, t); x.fails(ctx, t.err) {
			break
		}
	}
	return errorsOf(taken)
}

// maxFailed: one bad item must not hold up the others, but a store that is down should not be asked for every item.
const maxFailed = 3

// fails counts errors, and reports whether the step is to end.
func (x *collection) fails(ctx context.Context, err error) bool {
	if err != nil {
		x.failed++
	}
	return ctx.Err() != nil || x.failed >= maxFailed
}

// taking is an item that is being worked off.
type taking struct {
	item  Item
	keys  []target // that are to be decided
	later []string // keys that have to wait
	err   error    // why the item stays on the queue
}

// target is the key of an object, or of a plan, of an hour.
type target struct {
	hour timegrid.Hour
	key  string
	plan bool
}

// targetOf is the target with the key; false for a key of another kind.
func targetOf(key string) (target, bool) {
	if o, err := layout.ParseRollupObject(key); err == nil {
		return target{o.Hour, key, false}, true
	}
	if of := plannedGenerations(key); len(of) > 0 {
		return target{of[0].Hour, key, true}, true
	}
	return target{}, false
}

func errorsOf(taken []*taking) error {
	var errs []error
	for _, t := range taken {
		if t != nil && t.err != nil {
			errs = append(errs, fmt.Errorf("item %q: %w", t.item.Key(), t.err))
		}
	}
	return errors.Join(errs...)
}

// removeBlocks removes the blocks of the item that are superseded, and notes what is to be decided: the item's objects and
// plans, and those of its removed blocks.
func (x *collection) removeBlocks(ctx context.Context, t *taking) error {
	for _, key := range t.item.Keys {
		names := []string{key}
		if n, err := layout.ParseBlockManifest(key); err == nil {
			var wait bool
			if names, wait, err = x.removeBlock(ctx, n); err != nil {
				return err
			}
			if wait {
				t.later = append(t.later, key)
			}
		}
		for _, k := range names {
			if o, ok := targetOf(k); ok {
				t.keys = append(t.keys, o)
			}
		}
	}
	return nil
}

// ofHour is what is to be decided of an hour.
type ofHour struct {
	objects []due
	plans   []string
}

// byHour gives the objects and plans of all items by hour, each once; objects with the earliest time since which they are
// on the queue.
func byHour(taken []*taking) (hours []timegrid.Hour, of map[timegrid.Hour]*ofHour) {
	of = map[timegrid.Hour]*ofHour{}
	at := map[string]int{}
	for _, t := range taken {
		if t.err != nil {
			continue
		}
		for _, o := range t.keys {
			h := of[o.hour]
			if h == nil {
				h = &ofHour{}
				of[o.hour] = h
			}
			i, there := at[o.key]
			switch {
			case there && !o.plan:
				h.objects[i].since = min(h.objects[i].since, t.item.Since)
			case there:
			case o.plan:
				h.plans = append(h.plans, o.key)
				at[o.key] = 0
			default:
				at[o.key] = len(h.objects)
				h.objects = append(h.objects, due{o.key, t.item.Since})
			}
		}
	}
	return slices.Sorted(maps.Keys(of)), of
}

// decided notes what became of the item's objects and plans.
func (t *taking) decided(failed map[timegrid.Hour]error, later map[string]bool) {
	for _, o := range t.keys {
		if err := failed[o.hour]; err != nil && t.err == nil {
			t.err = err
		}
		if later[o.key] {
			t.later = append(t.later, o.key)
		}
	}
}

// finish puts the keys of the item that have to wait on the queue again, and only then takes the item off. A
// crash in between leaves both, and a repeat is harmless.
func (x *collection) finish(ctx context.Context, t *taking) error {
	if len(t.later) > 0 {
		if err := x.c.push(ctx, t.item.Reason, t.later, t.item.Since, max(x.c.cfg.Policy.Delay, minDelay)); err != nil {
			return err
		}
	}
	err := x.c.cfg.Queue.Done(ctx, t.item)
	if err == nil {
		x.report.Items++
	}
	return err
}

func (x *collection) log(key string, a Action, detail string) {
	e := Entry{key, a, detail}
	x.report.Entries = append(x.report.Entries, e)
	x.c.cfg.Events.collected(e)
}

// removeBlock replaces the manifest of a superseded block by its Removed record, and returns the objects and the plan that
// may go with it. With wait it could not be decided now.
func (x *collection) removeBlock(ctx context.Context, n catalog.Name) (keys []string, wait bool, err error) {
	key := n.Key()
	r, info, err := x.c.record(ctx, key)
	switch {
	case record.Opaque(err):
		x.log(key, Kept, err.Error())
		return nil, false, nil
	case err != nil:
		return nil, false, err
	case r == nil || r.Aborted != nil:
		x.log(key, Kept, "not committed")
		return nil, false, nil
	case r.Removed != nil: // by an earlier step that was interrupted
		return leftBy(r.Removed), false, nil
	}
	if n.Span > 0 {
		return x.removeCompaction(ctx, r.Block, info.ETag)
	}
	by, err := x.c.superseding(ctx, n)
	if err != nil {
		return nil, false, err
	}
	if by == 0 {
		x.log(key, Kept, "not superseded")
		return nil, false, nil
	}
	// The record is replaced before any object is deleted: a reader that finds an object missing reads the record
	// again and sees why.
	removed := r.Block.Remove(by, x.c.cfg.Clock.Now().UnixNano(), x.c.cfg.WorkerID)
	ok, err := x.c.replaceRecord(ctx, key, info.ETag, removed)
	if err != nil || !ok {
		return nil, true, err
	}
	x.log(key, RemovedBlock, fmt.Sprintf("superseded by generation %d", by))
	return leftBy(removed), false, nil
}

// leftBy gives what a removed block leaves: its objects, and its plan, which the other resolutions of the hour may need.
func leftBy(r *catalog.Removed) []string {
	return append(slices.Clone(r.Keys), layout.BlockPlan(r.Name))
}
