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

// proof is what the records of a shard's hour prove about the batches in it.
//
// A generation's key decides it for good, and a Removed record only ever replaces a committed block. So
// when every resolution has the same highest committed generation, removed by retention or not, exactly
// the inputs of that generation's plan were published in all of them. A plan is created once and never
// replaced. Blocks of the generation that still exist name the plan's digest; if all have expired, no
// reader uses a row of the hour any more, and the plan is found by its name alone.
type proof struct {
	hour       timegrid.Hour
	shard      shard.ID
	generation uint64 // highest committed, of every resolution
	// blocks of the generation that still exist, and whether the raw rows expired.
	blocks  []*catalog.Block
	expired bool
	changed time.Time // when the store last changed one of the records
	why     string    // not empty: nothing is proven, for this reason
	plan    *rollup.Plan
	inputs  catalog.Inputs
}

// prove reads the records of the hour, and the plan if they prove something. An error means that the store could
// not be asked.
func (f *FrameRemover) prove(ctx context.Context, id shard.ID, h timegrid.Hour) (*proof, error) {
	c, err := f.records(ctx, id, h)
	if err != nil || c.why != "" {
		return c, err
	}
	if c.plan, err = f.plan(ctx, c); catalog.Unreadable(err) {
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

// records reads the records of the hour.
func (f *FrameRemover) records(ctx context.Context, id shard.ID, h timegrid.Hour) (*proof, error) {
	c := &proof{hour: h, shard: id}
	of, err := f.slots(ctx, c)
	if err != nil {
		return nil, err
	}
	// The listing alone rules out most unfinished hours, before any record is read.
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
		// A record that can't be read may be of the generation that counts, and so may one that the listing did
		// not have yet.
		case len(st.Unreadable) > 0, st.Removed != nil && !st.Expired():
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
	return c, nil
}

// slots returns the shard's hour by resolution.
func (f *FrameRemover) slots(ctx context.Context, c *proof) (map[timegrid.Resolution]catalog.Slot, error) {
	of := map[timegrid.Resolution]catalog.Slot{}
	// Keys sort by shard and then by the name of the resolution, of which 1h is the first: the listing starts at
	// this shard and ends with it.
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

// check verifies that the plan's bytes are those that the records name.
func (c *proof) check(key string, body []byte, authority string) (*rollup.Plan, error) {
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
