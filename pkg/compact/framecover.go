package compact

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/rollup"
	"lightmetrics.dev/lightmetrics/pkg/shard"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// cover is what the records of a shard's hour prove of the batches in it.
//
// A generation's key decides it for good, and a removed record stands only where a
// committed set stood. So where every window has the same highest committed generation,
// removed by retention or not, exactly the inputs of that generation's plan were published
// in all of them. A plan is created once and never replaced. Where sets of the generation
// live on they name the plan's digest; where all have expired, nobody reads a row of the
// hour any more, and the plan is taken by its name.
type cover struct {
	hour       window.Hour
	shard      shard.ID
	generation uint64 // highest committed, of every window
	// sets of the generation that live on, and whether raw rows expired.
	sets    []*catalog.Set
	expired bool
	changed time.Time // when the store last changed a record
	why     string    // it proves nothing, and why
	plan    *rollup.Plan
	inputs  catalog.Inputs
}

// cover reads the records, and the plan where they prove something. An error is a store
// that could not be asked.
func (f *FrameRemover) cover(ctx context.Context, id shard.ID, h window.Hour) (*cover, error) {
	c := &cover{hour: h, shard: id}
	gens, err := f.generations(ctx, c)
	if err != nil {
		return nil, err
	}
	top := uint64(0)
	for i, w := range window.All() {
		all := gens[w]
		if len(all) == 0 {
			c.why = KeptUnfinished
			if len(gens) == 0 {
				c.why = KeptUncovered
			}
			return c, nil
		}
		if n := all[len(all)-1]; i == 0 {
			top = n
		} else if n != top {
			c.why = KeptUnfinished
			return c, nil
		}
	}
	for i, w := range window.All() {
		gen, err := f.committed(ctx, c, w, gens[w])
		if unreadable(err) || errors.Is(err, catalog.ErrReplaced) {
			c.why = KeptHour
			return c, nil
		}
		if err != nil {
			return nil, err
		}
		switch {
		case gen == 0:
			c.why = KeptUncovered
		case i > 0 && gen != c.generation:
			c.why = KeptUnfinished
		}
		if c.why != "" {
			return c, nil
		}
		c.generation = gen
	}
	if c.plan, err = f.plan(ctx, c); unreadable(err) || isPlan(err) {
		c.why = KeptHour
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	if c.inputs, err = c.plan.InputSet(); err != nil {
		c.why = KeptHour
	}
	return c, nil
}

// generations of each window of the shard's hour, ascending.
func (f *FrameRemover) generations(ctx context.Context, c *cover) (map[window.Window][]uint64, error) {
	gens := map[window.Window][]uint64{}
	// Keys of a shard stand together; its windows are in the order of their names.
	after := layout.RollupSet(c.hour, c.shard, window.OneHour, 0)
	for after != "" {
		page, err := listPage(ctx, f.cfg.Store, objstore.ListOptions{Prefix: layout.RollupSetsHour(c.hour), StartAfter: after})
		if err != nil {
			return nil, err
		}
		after = page.Next
		for _, i := range page.Objects {
			n, err := layout.ParseRollupSet(i.Key)
			if err != nil || n.Shard < c.shard || n.Span > 0 {
				continue
			}
			if n.Shard > c.shard {
				return gens, nil
			}
			if i.LastModified.After(c.changed) {
				c.changed = i.LastModified
			}
			gens[n.Window] = append(gens[n.Window], n.Generation)
		}
	}
	return gens, nil
}

// committed is the highest generation that was committed, 0 for none.
func (f *FrameRemover) committed(ctx context.Context, c *cover, w window.Window, gens []uint64) (uint64, error) {
	for _, gen := range slices.Backward(gens) {
		rctx, cancel := context.WithTimeout(ctx, recordTimeout)
		r, _, err := catalog.Read(rctx, f.cfg.Store, f.cfg.AuthorityID, layout.RollupSet(c.hour, c.shard, w, gen))
		cancel()
		switch {
		case err != nil:
			return 0, err
		case r.Set != nil:
			c.sets = append(c.sets, r.Set)
			return gen, nil
		case r.Removed != nil && r.Removed.SupersededBy != 0:
			// It was replaced by one that the listing does not have yet.
			return 0, fmt.Errorf("%w: generation %d", catalog.ErrReplaced, r.Removed.SupersededBy)
		case r.Removed != nil:
			c.expired = c.expired || w == window.Raw
			return gen, nil
		}
	}
	return 0, nil
}

// check takes the plan's bytes for what the records say that they are.
func (c *cover) check(key string, body []byte, authority string) (*rollup.Plan, error) {
	for _, s := range c.sets {
		if s.PlanKey != key || identity.Sum(body) != s.PlanSHA256 {
			return nil, fmt.Errorf("%w: %q is not the plan of %s", rollup.ErrPlan, key, s.Name.Key())
		}
	}
	p, err := rollup.ParsePlan(body)
	if err != nil {
		return nil, err
	}
	if p.Key() != key || p.AuthorityID != authority {
		return nil, fmt.Errorf("%w: %q is the plan %s of %q", rollup.ErrPlan, key, p.Key(), p.AuthorityID)
	}
	return p, nil
}
