package publish

import (
	"context"
	"errors"
	"fmt"
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
	// known caches what records name: a listing tells which of them have changed.
	known *catalog.Reader
	// stale is set when this collector has seen that the metadata store is an older copy.
	stale atomic.Bool
}

// NewCollector checks the settings; it makes no request.
func NewCollector(c Config) (*Collector, error) {
	k, err := newCore(c)
	if err != nil {
		return nil, err
	}
	return &Collector{core: k, known: catalog.NewReader(catalog.ReaderConfig{Read: k.read, Trim: trim, Limit: maxRemembered})}, nil
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
	// known are records that were read in this step. A record decides for good, except that a block may be removed
	// meanwhile; its objects are then kept until the next step.
	known map[string]*catalog.Record
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
	var failed []error
	for _, i := range items {
		if err := x.processItem(ctx, i); err != nil {
			failed = append(failed, fmt.Errorf("item %q: %w", i.Key(), err))
		}
		// One bad item must not hold up the others, but a store that is down should not be asked for every item.
		if ctx.Err() != nil || len(failed) == maxFailed {
			break
		}
	}
	return errors.Join(failed...)
}

const maxFailed = 3

// processItem checks every key, puts those that have to wait on the queue again, and only then takes the item off. A
// crash in between leaves both, and a repeat is harmless.
func (x *collection) processItem(ctx context.Context, i Item) error {
	var later []string
	objects := map[timegrid.Hour][]string{}
	for _, key := range i.Keys {
		if n, err := layout.ParseBlockManifest(key); err == nil {
			keys, wait, err := x.removeBlock(ctx, n)
			if err != nil {
				return err
			}
			if wait {
				later = append(later, key)
			}
			for _, k := range keys {
				o, _ := layout.ParseRollupObject(k) // a record's keys were checked
				objects[o.Hour] = append(objects[o.Hour], k)
			}
		} else if o, err := layout.ParseRollupObject(key); err == nil {
			objects[o.Hour] = append(objects[o.Hour], key)
		}
	}
	for _, h := range sortedHours(objects) {
		wait, err := x.decideObjects(ctx, h, objects[h], i.Since)
		if err != nil {
			return err
		}
		later = append(later, wait...)
	}
	if len(later) > 0 {
		if err := x.c.push(ctx, i.Reason, later, i.Since, max(x.c.cfg.Policy.Delay, minDelay)); err != nil {
			return err
		}
	}
	err := x.c.cfg.Queue.Done(ctx, i)
	if err == nil {
		x.report.Items++
	}
	return err
}

func sortedHours(m map[timegrid.Hour][]string) []timegrid.Hour {
	hours := make([]timegrid.Hour, 0, len(m))
	for h := range m {
		hours = append(hours, h)
	}
	slices.Sort(hours)
	return hours
}

func (x *collection) log(key string, a Action, detail string) {
	e := Entry{key, a, detail}
	x.report.Entries = append(x.report.Entries, e)
	x.c.cfg.Events.collected(e)
}

// removeBlock replaces the manifest of a superseded block by its Removed record, and returns the objects that may
// go with it. With wait it could not be decided now.
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
		return r.Removed.Keys, false, nil
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
	return removed.Keys, false, nil
}
