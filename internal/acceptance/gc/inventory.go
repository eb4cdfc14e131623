package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Inventory is a list of the bucket's keys that was made at a time, by somebody else, in files that are in no order. It selects
// candidates in place of a listing, and proves as little: what it names may be gone, and what came later is not in it.
type Inventory struct {
	// Key names it, so that another process can open the same.
	Key string
	At  time.Time
	// Files, each of which Read reads whole, as often as it is asked to.
	Files int
	Read  func(ctx context.Context, file int, each func(key string) error) error
}

// InventoryOptions are for sweeps that take their keys from inventories.
type InventoryOptions struct {
	// Open opens the inventory with a key, or the newest one for "". Nil: sweeps list the bucket.
	Open func(ctx context.Context, key string) (Inventory, error)
	// MaxAge by the store's clock, above which one is refused; 0 is DefaultInventoryAge.
	MaxAge time.Duration
	// Refused is called where a sweep lists the bucket, or the rest of it, although there are to be inventories. May be nil.
	Refused func(error)
}

// DefaultInventoryAge is a week, and a day for an inventory that is made weekly.
const DefaultInventoryAge = 8 * 24 * time.Hour

// ErrInventory says that an inventory must not be swept by.
var ErrInventory = errors.New("the inventory is of no use for a sweep")

// usable refuses an inventory that is too old to be worth a sweep, or of no known age.
func (o InventoryOptions) usable(inv *Inventory, now time.Time) error {
	most := o.MaxAge
	if most <= 0 {
		most = DefaultInventoryAge
	}
	age := now.Sub(inv.At)
	if inv.Files <= 0 || inv.Read == nil || age > most || age < -time.Hour {
		return fmt.Errorf("%w: %q of %s, %d files, %s old, at most %s", ErrInventory, inv.Key, inv.At.UTC().Format(time.RFC3339), inv.Files, age.Round(time.Minute), most)
	}
	return nil
}

// choose opens the inventory of the sweep under way, or, for a new one, the newest. Nil lists the bucket. An error is one of a
// store that may answer later.
func (r *Runner) choose(ctx context.Context, now time.Time) (*Inventory, error) {
	o := &r.cfg.Inventory
	if o.Open == nil {
		return nil, nil
	}
	st, err := r.readState(ctx, now)
	if err != nil {
		return nil, err
	}
	begun := st.Sweep.BeganAt > 0
	// An operator who asks for a sweep wants to know what is there now.
	if begun && st.Sweep.Inventory == "" || !begun && st.Requested {
		return nil, nil
	}
	if r.inventory != nil && r.inventory.Key == st.Sweep.Inventory {
		return r.inventory, nil
	}
	inv, err := o.Open(ctx, st.Sweep.Inventory)
	// One that a sweep goes on with was young enough when it began.
	if err == nil && !begun {
		err = o.usable(&inv, now)
	}
	if err != nil {
		return nil, r.refuse(ctx, now, err)
	}
	r.inventory = &inv
	return r.inventory, nil
}

// refuse has the sweep list what is left of the bucket, unless the store may say more later.
func (r *Runner) refuse(ctx context.Context, now time.Time, err error) error {
	if errors.Is(err, objstore.ErrUnavailable) || ctx.Err() != nil {
		return err
	}
	if r.cfg.Inventory.Refused != nil {
		r.cfg.Inventory.Refused(err)
	}
	r.inventory = nil
	_, err = r.move(ctx, now, func(s *State) { s.Sweep.Inventory = "" })
	return err
}

// PlanInventory is PlanNamed with the keys of an inventory in place of a listing: the first of those behind StartAfter that no name
// spares, in their order. Each of them is asked for, so ages and sizes are the store's, and what is gone is kept as that. fence is
// called before each step of these requests; it may be nil.
//
// It reads all files for each plan, and has MaxListed keys in memory. An inventory in which there is no blob although the names have
// some is refused with ErrInventory: it is of another prefix, or was filtered.
func (c *Collector) PlanInventory(ctx context.Context, n *Names, inv Inventory, o PlanOptions, step int, fence func(context.Context) error) (Plan, error) {
	if err := o.fill(); err != nil {
		return Plan{}, err
	}
	if n.from > position(o.StartAfter) {
		return Plan{}, fmt.Errorf("gc plan %s: the names begin behind %q", o.ID, o.StartAfter)
	}
	f := firstKeys{most: o.MaxListed}
	if !n.full {
		f.end = n.next()
	}
	for i := range inv.Files {
		err := inv.Read(ctx, i, func(key string) error {
			if !strings.HasPrefix(key, o.Prefix) {
				return nil
			}
			f.blobs++
			if key > o.StartAfter && (f.end == "" || key < f.end) {
				d, _, err := layout.ParseBlob(key)
				f.add(key, err == nil && n.has(d))
			}
			return nil
		})
		if err != nil {
			err = fmt.Errorf("file %d of the inventory %q: %w", i, inv.Key, err)
			if !errors.Is(err, objstore.ErrUnavailable) && ctx.Err() == nil {
				err = fmt.Errorf("%w: %w", ErrInventory, err)
			}
			return Plan{}, planError(o.ID, err)
		}
	}
	if f.blobs == 0 && len(n.prints) > 0 {
		return Plan{}, planError(o.ID, fmt.Errorf("%w: %q has no key below %s, and the journal names %d blobs", ErrInventory, inv.Key, o.Prefix, len(n.prints)))
	}
	p := Plan{ID: o.ID}
	keys := f.done(&p)
	for part := range slices.Chunk(keys, max(step, 1)) {
		if fence != nil {
			if err := fence(ctx); err != nil {
				return Plan{}, planError(o.ID, err)
			}
		}
		if err := c.head(ctx, &p, part, o); err != nil {
			return Plan{}, err
		}
	}
	return p, nil
}

// firstKeys keeps the first keys of those that come in no order, and counts all of them by their place in the order of hashes.
type firstKeys struct {
	most int
	// end is the key before which all of them are; empty is no bound.
	end   string
	keys  []string
	cut   bool // there were more
	blobs int
	// listed and named are counted for each 16 bits of hash, so that those before the last key that is kept are known.
	listed, named [1 << 16]uint32
}

func (f *firstKeys) add(key string, named bool) {
	at := position(key) >> 48
	f.listed[at]++
	if named {
		f.named[at]++
		return
	}
	if f.cut && key > f.keys[f.most-1] {
		return
	}
	f.keys = append(f.keys, key)
	if len(f.keys) > 2*f.most {
		f.sort()
	}
}

// sort drops repetitions, which an inventory may have, and what is behind the first most+1.
func (f *firstKeys) sort() {
	slices.Sort(f.keys)
	f.keys = slices.Compact(f.keys)
	if len(f.keys) > f.most {
		f.keys, f.cut = f.keys[:f.most], true
	}
}

// done sets what the plan says of the blobs up to its end, and returns the keys that it is to ask for.
func (f *firstKeys) done(p *Plan) []string {
	f.sort()
	p.Next = f.end
	until := uint64(len(f.listed))
	if f.cut {
		p.Next = f.keys[f.most-1]
		// Of the class in which the plan ends only the candidates count, so the breaker has rather fewer blobs to compare with.
		until = position(p.Next) >> 48
		for _, key := range f.keys {
			if position(key)>>48 == until {
				p.Listed++
			}
		}
	}
	for i := range until {
		p.Listed += int(f.listed[i])
		p.Named += int(f.named[i])
	}
	return f.keys
}
