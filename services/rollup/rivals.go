package rollup

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Batches whose sequence numbers overlap are rivals: each number counts once, so each of
// them must be an input of every hour that the other has records in. Rivals of one hour
// are so anyway; those of other hours are looked for among what is pending, and in the
// blocks of the hours beside: numbers ascend with time, so that is where an agent
// that numbers records twice has the others.

// rivals makes the hour's pending batches and their rivals inputs of each other's hours.
func (o *owner) rivals(ctx context.Context, h timegrid.Hour) error {
	o.log.rivals(o.s.now())
	pend := o.log.inputs(h)
	for _, beside := range []timegrid.Hour{h - 1, h + 1} {
		pub, err := o.s.published(ctx, beside, o.grant.Shard)
		if record.Unreadable(err) {
			// It waits for a repair; who overlaps is told by what was accepted.
			o.s.m.damage(err)
			if err := o.rivalsAccepted(ctx, pend, beside, h); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		block := pub.sets[timegrid.Raw]
		if block == nil {
			continue
		}
		var found []identity.Batch
		for _, e := range pend {
			rs := intersecting(block.Inputs, e.Identity)
			if len(rs) > 0 {
				o.log.need(o.log.batches[e.Identity], beside, o.s.now())
			}
			found = append(found, rs...)
		}
		if err := o.join(ctx, h, block, found); err != nil {
			return err
		}
	}
	return nil
}

// join makes published batches of another hour inputs of h.
func (o *owner) join(ctx context.Context, h timegrid.Hour, block *catalog.Block, ids []identity.Batch) error {
	if len(ids) == 0 {
		return nil
	}
	p, err := o.s.readPlan(ctx, block.Name.Hour, o.grant.Shard, block.Name.Generation)
	if errors.Is(err, objstore.ErrNotFound) {
		return nil // too old to be looked after
	}
	if record.Unreadable(err) {
		o.s.m.damage(err)
		return o.joinAccepted(ctx, ids, h)
	}
	if err != nil {
		return err
	}
	for _, e := range p.Inputs {
		if slices.Contains(ids, e.Identity) {
			o.log.join(e, h, o.s.now())
		}
	}
	return nil
}

// intersecting gives the batches of the set that share sequence numbers with id, but id.
func intersecting(in catalog.Inputs, id identity.Batch) (out []identity.Batch) {
	for _, b := range in.Boots() {
		if b.Agent != id.Agent || b.Boot != id.Boot {
			continue
		}
		for _, r := range b.Runs {
			first := uint64(0)
			if id.SeqStart > r.Start {
				first = (id.SeqStart - r.Start) / r.Records
			}
			for k := first; k < r.Batches; k++ {
				at := r.Start + k*r.Records
				o := identity.Batch{Agent: id.Agent, Boot: id.Boot, SeqStart: at, SeqEnd: at + (r.Records - 1)}
				if at > id.SeqEnd {
					break
				}
				if o != id && o.Intersects(id) {
					out = append(out, o)
				}
			}
		}
	}
	return out
}

// rivals finds groups of pending batches that overlap: each becomes an input of every hour
// of its group. What was looked at stays so until a batch comes or gets another hour.
func (b *backlog) rivals(now time.Time) {
	if !b.unjudged {
		return
	}
	all := slices.Collect(maps.Values(b.batches))
	slices.SortFunc(all, func(x, y *pending) int { return x.Identity.Compare(y.Identity) })
	for i := 0; i < len(all); {
		first := all[i].Identity
		end, j := first.SeqEnd, i+1
		for j < len(all) && all[j].Identity.BootOf() == first.BootOf() && all[j].SeqStart <= end {
			end = max(end, all[j].SeqEnd)
			j++
		}
		if j > i+1 {
			var hours []timegrid.Hour
			for _, p := range all[i:j] {
				hours = append(hours, p.all...)
			}
			slices.Sort(hours)
			for _, x := range slices.Compact(hours) {
				for _, p := range all[i:j] {
					b.need(p, x, now)
				}
			}
		}
		i = j
	}
	b.unjudged = false
}

// join makes a batch that is published elsewhere an input of the hour.
func (b *backlog) join(e accepted.Batch, h timegrid.Hour, now time.Time) {
	p := b.batches[e.Identity]
	if p == nil {
		p = &pending{Batch: e}
		b.batches[e.Identity] = p
	}
	b.need(p, h, now)
}
