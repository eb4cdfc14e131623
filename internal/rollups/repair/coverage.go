package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Coverage finds accepted batches that no block has and that no intake segment
// brings: those of before there were rollups, or whose segments were lost. An hour with a
// set counts as whole for queries; this is what tells that it is not. For one caller.
type Coverage struct {
	r       *Repairer
	pending map[identity.Batch]bool
	hours   map[place]*published
	missing map[place]*Uncovered
	// Batches that were looked at; Pending ones stand in the intake; Unreadable hours have
	// a damaged record, and are not judged.
	Batches, Pending uint64
	Unreadable       map[timegrid.Hour]bool
}

// published is what the resolutions of an hour cover.
type published struct {
	sets    []catalog.Inputs
	expired bool // some resolution had a set and has none any more
	damaged bool
}

// Uncovered are batches of a shard's hour.
type Uncovered struct {
	Hour    timegrid.Hour
	Shard   shard.ID
	Batches uint64
	Records uint64
	// First of them by acceptance, Unix nanoseconds, and one of their identities.
	First, Last int64
	Example     identity.Batch
	// None: nothing at all is published of the hour.
	None bool
}

// Coverage begins by reading the intake: a batch that leaves it later is covered by then.
func (r *Repairer) Coverage(ctx context.Context) (*Coverage, error) {
	c := &Coverage{r: r, pending: map[identity.Batch]bool{}, hours: map[place]*published{}, missing: map[place]*Uncovered{}, Unreadable: map[timegrid.Hour]bool{}}
	for i, err := range objstore.List(ctx, r.cfg.Store, objstore.ListOptions{Prefix: layout.IntakePrefix}) {
		if err != nil {
			return nil, fmt.Errorf("coverage: intake: %w", err)
		}
		seg, err := intake.ReadSegment(ctx, r.cfg.Store, i.Key)
		if errors.Is(err, objstore.ErrNotFound) || record.Unreadable(err) {
			continue // taken meanwhile; or of no use to anybody
		}
		if err != nil {
			return nil, fmt.Errorf("coverage: intake: %w", err)
		}
		for _, e := range seg.Entries {
			c.pending[e.Identity] = true
		}
	}
	return c, nil
}

// maxHours that are remembered; batches come by time, so few are asked for at a time.
const maxHours = 1000

// Check looks at one accepted batch.
func (c *Coverage) Check(ctx context.Context, m accept.Manifest) error {
	c.Batches++
	if c.pending[m.Identity] {
		c.Pending++
		return nil
	}
	e := m.Batch()
	first, last := e.Hours()
	s := shard.Of(e.Agent, c.r.cfg.Shards)
	// Between the first and the last hour there may be no samples.
	for _, h := range slices.Compact([]timegrid.Hour{first, last}) {
		p, err := c.published(ctx, place{h, s})
		if err != nil {
			return fmt.Errorf("coverage of %s: %w", m.Identity, err)
		}
		switch {
		case p.damaged:
			c.Unreadable[h] = true
			continue
		case len(p.sets) == 0 && p.expired:
			continue
		case len(p.sets) > 0 && !slices.ContainsFunc(p.sets, func(in catalog.Inputs) bool { return !in.Covers(m.Identity) }):
			continue
		}
		u := c.missing[place{h, s}]
		if u == nil {
			u = &Uncovered{Hour: h, Shard: s, First: m.AcceptedAt, Last: m.AcceptedAt, Example: m.Identity, None: len(p.sets) == 0}
			c.missing[place{h, s}] = u
		}
		u.Batches++
		u.Records += m.Identity.Count()
		u.First, u.Last = min(u.First, m.AcceptedAt), max(u.Last, m.AcceptedAt)
	}
	return nil
}

func (c *Coverage) published(ctx context.Context, at place) (*published, error) {
	if p := c.hours[at]; p != nil {
		return p, nil
	}
	st, err := c.r.state(ctx, at.hour, at.shard)
	if err != nil {
		return nil, err
	}
	p := &published{damaged: len(st.damaged) > 0}
	for _, res := range timegrid.Resolutions() {
		if block := st.sets[res]; block != nil {
			p.sets = append(p.sets, block.Inputs)
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

// Uncovered is what was found, by hours and shards.
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
