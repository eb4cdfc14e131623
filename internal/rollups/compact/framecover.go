package compact

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// cover is what the records of a shard's hour prove of the batches in it.
//
// A generation's key decides it for good, and a removed record stands only where a
// committed set stood. So where every resolution has the same highest committed generation,
// removed by retention or not, exactly the inputs of that generation's plan were published
// in all of them. A plan is created once and never replaced. Where sets of the generation
// live on they name the plan's digest; where all have expired, nobody reads a row of the
// hour any more, and the plan is taken by its name.
type cover struct {
	hour       timegrid.Hour
	shard      shard.ID
	generation uint64 // highest committed, of every resolution
	// sets of the generation that live on, and whether raw rows expired.
	blocks  []*catalog.Block
	expired bool
	changed time.Time // when the store last changed a record
	why     string    // it proves nothing, and why
	plan    *rollup.Plan
	inputs  catalog.Inputs
}

// cover reads the records, and the plan where they prove something. An error is a store
// that could not be asked.
func (f *FrameRemover) cover(ctx context.Context, id shard.ID, h timegrid.Hour) (*cover, error) {
	c := &cover{hour: h, shard: id}
	of, err := f.slots(ctx, c)
	if err != nil {
		return nil, err
	}
	for _, res := range timegrid.Resolutions() {
		switch {
		case len(of) == 0:
			c.why = KeptUncovered
		case of[res].Top() == 0 || of[res].Top() != of[timegrid.Raw].Top():
			c.why = KeptUnfinished
		}
		if c.why != "" {
			return c, nil
		}
	}
	records := catalog.NewReader(catalog.ReaderConfig{Read: reading(f.cfg.Store, f.cfg.AuthorityID)})
	for i, res := range timegrid.Resolutions() {
		st, err := records.State(ctx, of[res])
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
		if st.Block != nil {
			c.blocks = append(c.blocks, st.Block)
		}
		c.expired = c.expired || st.Expired() && res == timegrid.Raw
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

// slots of the shard's hour, by resolution.
func (f *FrameRemover) slots(ctx context.Context, c *cover) (map[timegrid.Resolution]catalog.Slot, error) {
	of := map[timegrid.Resolution]catalog.Slot{}
	// Keys of a shard stand together; its resolutions are in the order of their names.
	o := objstore.ListOptions{Prefix: layout.BlockManifestsHour(c.hour), StartAfter: layout.BlockManifest(c.hour, c.shard, timegrid.OneHour, 0)}
	for slot, err := range catalog.Slots(ctx, f.cfg.Store, o) {
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
		of[slot.Name.Resolution] = slot
	}
	return of, nil
}

// check takes the plan's bytes for what the records say that they are.
func (c *cover) check(key string, body []byte, authority string) (*rollup.Plan, error) {
	for _, s := range c.blocks {
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
