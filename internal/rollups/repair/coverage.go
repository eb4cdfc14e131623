package repair

import (
	"context"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Coverage finds accepted batches that no block has and that no worker knows as pending. By the progress of the shards
// there are none; this checks it against the blocks. It is for one caller.
type Coverage struct {
	r       *Repairer
	pending map[identity.Batch]bool
	hours   map[place]*published
	missing map[place]*Uncovered
	// Batches that were checked; Pending ones may be in no block yet; Unreadable hours have a damaged record, and
	// nothing is said about them.
	Batches, Pending uint64
	Unreadable       map[timegrid.Hour]bool
}

// published is what the blocks of an hour cover, one Inputs for each resolution.
type published struct {
	inputs  []catalog.Inputs
	expired bool // some resolution had a block and has none any more
	damaged bool
}

// Uncovered are the missing batches of a shard's hour.
type Uncovered struct {
	Hour    timegrid.Hour
	Shard   shard.ID
	Batches uint64
	Records uint64
	// First of them by acceptance, Unix nanoseconds, and one of their identities.
	First, Last int64
	Example     identity.Batch
	// None says that nothing at all is published of the hour.
	None bool
}

// Coverage reads the progress of the shards first, and the journal after it: a batch that is pending now and not later
// is in a block by then, so no batch is called missing that is only on its way.
func (r *Repairer) Coverage(ctx context.Context) (*Coverage, error) {
	c := &Coverage{r: r, pending: map[identity.Batch]bool{}, hours: map[place]*published{}, missing: map[place]*Uncovered{}, Unreadable: map[timegrid.Hour]bool{}}
	all, err := progress.ReadAll(ctx, r.cfg.Store, r.cfg.AuthorityID, r.cfg.Shards)
	if err != nil {
		return nil, fmt.Errorf("coverage: %w", err)
	}
	for _, p := range all {
		if err := p.Open(ctx, r.cfg.Store, func(e accepted.Batch) { c.pending[e.Identity] = true }); err != nil {
			return nil, fmt.Errorf("coverage: %w", err)
		}
	}
	// Deltas after that, for the same reason.
	err = r.eachDelta(ctx, nil, func(key string, _ layout.DeltaName) error {
		d, bad, err := r.readDelta(ctx, key, false)
		if d == nil || bad != nil || err != nil {
			return err
		}
		for i := range d.Batches {
			c.pending[d.Batches[i].Identity] = true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("coverage: deltas: %w", err)
	}
	return c, nil
}

// maxHours bounds the hours that are cached. Batches come in order of time, so few hours are needed at once.
const maxHours = 1000

// Check checks one accepted batch against the blocks of its hours.
func (c *Coverage) Check(ctx context.Context, e accepted.Batch) error {
	c.Batches++
	if c.pending[e.Identity] {
		c.Pending++
		return nil
	}
	s := shard.Of(e.Agent, c.r.cfg.Shards)
	for _, h := range hoursOfEnds(e) {
		p, err := c.publishedIn(ctx, place{h, s})
		if err != nil {
			return fmt.Errorf("coverage of %s: %w", e.Identity, err)
		}
		switch {
		case p.damaged:
			c.Unreadable[h] = true
			continue
		// Every block of the hour expired, so the batch is not missing: it was published, or came after the
		// expiry.
		case len(p.inputs) == 0 && p.expired:
			continue
		// Missing in one resolution is missing: that resolution answers queries too.
		case len(p.inputs) > 0 && !slices.ContainsFunc(p.inputs, func(in catalog.Inputs) bool { return !in.Covers(e.Identity) }):
			continue
		}
		u := c.missing[place{h, s}]
		if u == nil {
			u = &Uncovered{Hour: h, Shard: s, First: e.AcceptedAt, Last: e.AcceptedAt, Example: e.Identity, None: len(p.inputs) == 0}
			c.missing[place{h, s}] = u
		}
		u.Batches++
		u.Records += e.Count()
		u.First, u.Last = min(u.First, e.AcceptedAt), max(u.Last, e.AcceptedAt)
	}
	return nil
}

func (c *Coverage) publishedIn(ctx context.Context, at place) (*published, error) {
	if p := c.hours[at]; p != nil {
		return p, nil
	}
	st, err := c.r.state(ctx, at.hour, at.shard)
	if err != nil {
		return nil, err
	}
	p := &published{damaged: len(st.damaged) > 0}
	for _, res := range timegrid.Resolutions() {
		if block := st.blocks[res]; block != nil {
			p.inputs = append(p.inputs, block.Inputs)
		} else if st.top[res] > 0 {
			p.expired = true
		}
	}
	if len(c.hours) >= maxHours {
		clear(c.hours)
	}
	c.hours[at] = p
	return p, nil
}

// Uncovered returns what was found, sorted by hour and shard.
func (c *Coverage) Uncovered() []Uncovered {
	out := make([]Uncovered, 0, len(c.missing))
	for _, u := range c.missing {
		out = append(out, *u)
	}
	slices.SortFunc(out, func(a, b Uncovered) int {
		if a.Hour != b.Hour {
			return int(a.Hour - b.Hour)
		}
		return int(a.Shard) - int(b.Shard)
	})
	return out
}
