package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// deltas are those that a catalog knows. It never changes.
type deltas struct {
	// of has the deltas by key; nil is one whose header can't be read, with the reason in bad.
	of  map[string]*delta.Delta
	bad map[string]error
	// gone are deltas that the last listing did not have, with the number of that listing.
	gone map[string]uint64
	// batches are those of all deltas, each with a delta that has it; one that is listed where there is one.
	batches map[identity.Batch]LateBatch
	// hours has the batches of an hour, in the order of their identities.
	hours map[timegrid.Hour][]LateBatch
}

var noDeltas = &deltas{}

// LateBatch is a batch of a delta.
type LateBatch struct {
	*delta.Batch
	Delta *delta.Delta
}

// Late are the batches of a shard's hour that are in deltas and in no block.
type Late struct {
	Hour  timegrid.Hour
	Shard shard.ID
	// Batches in the order of their identities.
	Batches []LateBatch
}

// RefreshDeltas lists the deltas and reads the headers of those that are new. It is for the caller of Refresh.
//
// A delta is deleted once the blocks of all its hours have its batches. So one that is gone still counts in hours
// that were read before it was missed, and is forgotten when these were read again.
func (c *Catalog) RefreshDeltas(ctx context.Context) (*View, error) {
	c.left.Store(int64(c.cfg.MaxRequests))
	c.listings++
	next, err := c.listDeltas(ctx, c.view.late())
	if err != nil {
		return c.view, fmt.Errorf("refresh deltas: %w", err)
	}
	v := *c.view
	v.deltas = next
	c.view = &v
	c.forgetDeltas()
	return c.view, nil
}

func (c *Catalog) listDeltas(ctx context.Context, old *deltas) (*deltas, error) {
	next := &deltas{of: map[string]*delta.Delta{}, bad: map[string]error{}, gone: map[string]uint64{}}
	for i, err := range objstore.List(ctx, lister{c}, objstore.ListOptions{Prefix: layout.RollupDeltasPrefix}) {
		if err != nil {
			return nil, err
		}
		if _, err := layout.ParseRollupDelta(i.Key); err != nil {
			continue // a foreign key
		}
		// A delta never changes, so one whose header was read is not read again.
		if d := old.of[i.Key]; d != nil {
			next.of[i.Key] = d
			continue
		}
		if err := c.spend(); err != nil {
			return nil, err
		}
		d, err := delta.Read(ctx, c.cfg.Reader, c.cfg.AuthorityID, i.Key)
		switch {
		case Unreadable(err):
			next.of[i.Key], next.bad[i.Key] = nil, err
		case err != nil:
			return nil, err
		default:
			next.of[i.Key] = d
		}
	}
	for key, d := range old.of {
		if _, listed := next.of[key]; listed || d == nil {
			continue
		}
		next.of[key], next.gone[key] = d, c.listings
		if at, ok := old.gone[key]; ok {
			next.gone[key] = at
		}
	}
	next.index()
	return next, nil
}

// index makes the maps by batch and hour.
func (s *deltas) index() {
	s.batches, s.hours = map[identity.Batch]LateBatch{}, map[timegrid.Hour][]LateBatch{}
	for _, key := range slices.Sorted(maps.Keys(s.of)) {
		d := s.of[key]
		if d == nil {
			continue
		}
		_, gone := s.gone[key]
		for i := range d.Batches {
			b := &d.Batches[i]
			// A batch may be in several deltas: one that was written together with others replaces those that had
			// them. The object of one that is gone may not be there any more.
			if _, ok := s.batches[b.Identity]; !ok || !gone {
				s.batches[b.Identity] = LateBatch{b, d}
			}
		}
	}
	for _, b := range s.batches {
		for _, h := range b.Hours {
			s.hours[h] = append(s.hours[h], b)
		}
	}
	for _, of := range s.hours {
		slices.SortFunc(of, func(x, y LateBatch) int { return x.Identity.Compare(y.Identity) })
	}
}

// forgetDeltas drops those that are gone and that no hour needs any more.
func (c *Catalog) forgetDeltas() {
	old := c.view.late()
	if len(old.gone) == 0 {
		return
	}
	next := &deltas{of: maps.Clone(old.of), bad: old.bad, gone: maps.Clone(old.gone)}
	for key, at := range old.gone {
		needed := slices.ContainsFunc(old.of[key].Batches, func(b delta.Batch) bool {
			return slices.ContainsFunc(b.Hours, func(h timegrid.Hour) bool {
				// An hour that was read after the delta was missed has the blocks for which it went.
				read, ok := c.readAfter(h)
				return ok && read < at
			})
		})
		if !needed {
			delete(next.of, key)
			delete(next.gone, key)
		}
	}
	if len(next.gone) == len(old.gone) {
		return
	}
	next.index()
	v := *c.view
	v.deltas = next
	c.view = &v
}

// late is the view's deltas; it is never nil.
func (v *View) late() *deltas {
	if v == nil || v.deltas == nil {
		return noDeltas
	}
	return v.deltas
}

// Late are the batches of an hour that deltas have and its raw blocks do not, by shard; none where the hour's
// samples have expired.
func (v *View) Late(h timegrid.Hour) (out []Late) {
	if v.Expired(h, timegrid.Raw) {
		return nil
	}
	hr := v.at(h)
	for _, b := range v.late().hours[h] {
		id := b.Delta.Shard
		if s := hr.blocks[slot{id, timegrid.Raw}]; s != nil && s.Inputs.Covers(b.Identity) {
			continue
		}
		i := slices.IndexFunc(out, func(l Late) bool { return l.Shard == id })
		if i < 0 {
			i = len(out)
			out = append(out, Late{Hour: h, Shard: id})
		}
		out[i].Batches = append(out[i].Batches, b)
	}
	slices.SortFunc(out, func(a, b Late) int { return int(a.Shard) - int(b.Shard) })
	return out
}

// LateRows reports that the hour's samples have expired, and that deltas have batches which its rolled rows lack.
func (v *View) LateRows(h timegrid.Hour) bool {
	return v.Expired(h, timegrid.Raw) && slices.ContainsFunc(v.late().hours[h], func(b LateBatch) bool { return !v.RowsCover(b.Identity, h) })
}

// badDeltas are problems of the hour: deltas that may have samples of it and can't be read.
func (v *View) badDeltas(h timegrid.Hour) (out []Problem) {
	s := v.late()
	for _, key := range slices.Sorted(maps.Keys(s.bad)) {
		if n, err := layout.ParseRollupDelta(key); err == nil && n.From <= h && h <= n.To {
			out = append(out, Problem{key, s.bad[key]})
		}
	}
	return out
}

// Deltas that the view knows, by key.
func (v *View) Deltas() (out []*delta.Delta) {
	s := v.late()
	for _, key := range slices.Sorted(maps.Keys(s.of)) {
		if d := s.of[key]; d != nil {
			out = append(out, d)
		}
	}
	return out
}
