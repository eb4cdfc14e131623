package publish

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// A plan says what a generation is made of. The manifest's key decides the generation for good, so once it is decided at
// every resolution nobody can publish anything of the plan, whoever still has it, or makes it again with other inputs. The
// plan of the generation that counts is read long after that: by the next generation, which takes its inputs over, and by
// the retention of raw frames. No plan of a generation below it is read by anybody, so these go.

// unneededPlans gives those of the plans that nobody needs.
func (x *collection) unneededPlans(m *manifests, plans []string) (unneeded []string) {
	for _, key := range plans {
		why := m.needsPlan(plannedGenerations(key))
		if why != "" {
			x.log(key, Kept, why)
			continue
		}
		unneeded = append(unneeded, key)
	}
	return unneeded
}

// needsPlan says why the plan of the generations may be read again; "" when it can't be. What it says of a plan that is not
// needed stays true: decided generations stay decided, and the highest committed one never falls.
func (m *manifests) needsPlan(of []catalog.Name) string {
	for _, n := range of {
		slot := n
		slot.Generation = 0
		at := m.slots[slot]
		became, decided := at.decided[n.Generation]
		switch {
		case !decided:
			return "undecided: " + n.Key()
		// The next generation of a compaction is planned by what its sources are then.
		case n.Span > 0:
		// The next generation of the hour takes the inputs of the highest committed one over, of whichever resolution, and
		// the retention of raw frames proves by them what was published, also after the blocks have expired.
		case n.Generation >= at.committed:
			return fmt.Sprintf("generation %d counts at %s", at.committed, n.Resolution)
		// A reader of the hour, or a repair, may still go by this record.
		case became == published:
			return "not removed yet: " + n.Key()
		}
	}
	return ""
}

// SweepPlans finds plans that nobody needs and nobody queued: of crashes, of aborted generations, of workers that made a
// plan of a generation that others had decided. It looks at one page of a shard's plans, in the order of their hours, from
// behind the key after on ("" begins), and puts on the queue those that may go; the collector proves it. next is where to
// go on, "" at the end. It costs one LIST.
func (c *Collector) SweepPlans(ctx context.Context, s shard.ID, after string) (next string, queued int, err error) {
	prefix := layout.RollupPlansOf(s)
	page, err := c.cfg.Store.List(ctx, objstore.ListOptions{Prefix: prefix, StartAfter: after})
	if err != nil {
		return after, 0, fmt.Errorf("sweep plans of shard %s: %w", s, err)
	}
	left, next := leftoverPlans(page)
	if len(left) == 0 {
		return next, 0, nil
	}
	err = c.push(ctx, "plan", left, 0, c.cfg.Policy.Delay)
	c.cfg.Events.queued("plan", len(left), err)
	if err != nil {
		return after, 0, fmt.Errorf("sweep plans of shard %s: %w", s, err)
	}
	return next, len(left), nil
}

// leftoverPlans gives the plans of a page that may be left over: all but the hour's highest one, and those of compactions.
// An hour that the next page continues is left to that page, which begins with it.
func leftoverPlans(page objstore.Page) (left []string, next string) {
	var of []string // plans of the hour at hand
	hour, before := timegrid.Hour(0), ""
	last := ""
	for _, i := range page.Objects {
		names := plannedGenerations(i.Key)
		if len(names) == 0 {
			continue
		}
		if len(of) > 0 && names[0].Hour != hour {
			left = append(left, allButHighest(of)...)
			of, before = nil, last
		}
		hour, last, of = names[0].Hour, i.Key, append(of, i.Key)
	}
	if page.Next == "" {
		return append(left, allButHighest(of)...), ""
	}
	// An hour with more plans than a page: what the page has of it is all that can be said now.
	if before == "" {
		return append(left, allButHighest(of)...), page.Objects[len(page.Objects)-1].Key
	}
	return left, before
}

// allButHighest leaves out the plan of an hour's highest generation. Plans of compactions come after those of the hour and
// are not counted among its generations.
func allButHighest(of []string) (left []string) {
	highest := -1
	for i, key := range of {
		if _, _, _, err := layout.ParseRollupPlan(key); err == nil {
			highest = i
		}
	}
	for i, key := range of {
		if i != highest {
			left = append(left, key)
		}
	}
	return left
}
