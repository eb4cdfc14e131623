package compact

import (
	"context"
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
	of, err := f.slots(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, w := range window.All() {
		switch {
		case len(of) == 0:
			c.why = KeptUncovered
		case of[w].Top() == 0 || of[w].Top() != of[window.Raw].Top():
			c.why = KeptUnfinished
		}
		if c.why != "" {
			return c, nil
		}
	}
	records := catalog.NewReader(catalog.ReaderConfig{Read: reading(f.cfg.Store, f.cfg.AuthorityID)})
	for i, w := range window.All() {
		st, err := records.State(ctx, of[w])
		if err != nil {
			return nil, err
		}
		switch {
		// A record that can't be read may be of what counts, and so may one that is not there yet.
		case len(st.Doubt) > 0, st.Removed != nil && !st.Expired():
			c.why = KeptHour
		case st.Committed == 0:
			c.why = KeptUncovered
		case i > 0 && st.Committed != c.generation:
			c.why = KeptUnfinished
		}
		if c.why != "" {
			return c, nil
		}
		c.generation = st.Committed
		if st.Set != nil {
			c.sets = append(c.sets, st.Set)
		}
		c.expired = c.expired || st.Expired() && w == window.Raw
	}
	if c.plan, err = f.plan(ctx, c); catalog.Doubtful(err) {
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

// slots of the shard's hour, by window.
func (f *FrameRemover) slots(ctx context.Context, c *cover) (map[window.Window]catalog.Slot, error) {
	of := map[window.Window]catalog.Slot{}
	// Keys of a shard stand together; its windows are in the order of their names.
	o := objstore.ListOptions{Prefix: layout.RollupSetsHour(c.hour), StartAfter: layout.RollupSet(c.hour, c.shard, window.OneHour, 0)}
	for slot, err := range catalog.Slots(ctx, timed{f.cfg.Store}, o) {
		if err != nil {
			return nil, err
		}
		if slot.Name.Shard > c.shard {
			break
		}
		if slot.Name.Shard < c.shard || slot.Name.Span > 0 {
			continue
		}
		for _, g := range slot.Listed {
			if g.Info.LastModified.After(c.changed) {
				c.changed = g.Info.LastModified
			}
		}
		of[slot.Name.Window] = slot
	}
	return of, nil
}

// check takes the plan's bytes for what the records say that they are.
func (c *cover) check(key string, body []byte, authority string) (*rollup.Plan, error) {
	for _, s := range c.sets {
		if s.PlanKey != key || identity.Sum(body) != s.PlanSHA256 {
			return nil, rollup.PlanKind.Corrupt(key, "it is not the plan of %s", s.Name.Key())
		}
	}
	p, err := rollup.ParsePlan(body)
	if err != nil {
		return nil, err
	}
	if p.Key() != key || p.AuthorityID != authority {
		return nil, rollup.PlanKind.Corrupt(key, "it is the plan %s of %q", p.Key(), p.AuthorityID)
	}
	return p, nil
}
