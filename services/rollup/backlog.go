package rollup

import (
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// backlog is what a shard's intake says and blocks do not cover yet, as far as
// this worker knows. It is rebuilt from the intake by whoever owns the shard next. Not
// for concurrent use.
type backlog struct {
	batches  map[identity.Batch]*pending
	hours    map[timegrid.Hour]*hourWork
	segments map[string]segment // by key
	spent    []string           // segments that may be deleted
	shelved  int                // batches that were forgotten since the last second look began
	unjudged bool               // batches or hours came since rivals looked
}

// segment counts the batches of one that are not covered: those that are pending, and
// those that this worker has forgotten. A segment with the latter is never spent.
type segment struct{ open, shelved int }

// pending is a batch that is not covered in some hours.
type pending struct {
	accepted.Batch
	all      []timegrid.Hour // that it is an input of
	hours    []timegrid.Hour // those of them that do not cover it yet
	segments []string
}

// hourWork is one hour with pending batches.
type hourWork struct {
	hour  timegrid.Hour
	ids   map[identity.Batch]struct{}
	since time.Time // when the first of them was seen
	next  time.Time // not looked at before
	fails int
	stuck int // failures in a row that a later try does not mend
	// crowded: there is no room, and the hour is not to wait for its end.
	crowded bool
}

func newBacklog() *backlog {
	return &backlog{batches: map[identity.Batch]*pending{}, hours: map[timegrid.Hour]*hourWork{}, segments: map[string]segment{}}
}

// add notes a segment; hours gives the hours that a batch is an input of.
func (b *backlog) add(key string, entries []accepted.Batch, hours func(accepted.Batch) []timegrid.Hour, now time.Time) {
	if b.knows(key) {
		return
	}
	n := 0
	b.segments[key] = segment{}
	for _, e := range entries {
		id := e.Identity
		p := b.batches[id]
		if p == nil {
			hs := hours(e)
			if len(hs) == 0 {
				continue
			}
			p = &pending{Batch: e}
			b.batches[id] = p
			for _, h := range hs {
				b.need(p, h, now)
			}
		}
		if !slices.Contains(p.segments, key) {
			p.segments = append(p.segments, key)
			n++
		}
	}
	b.segments[key] = segment{open: n}
	b.settle(key)
}

// knows reports whether the segment was read and is not spent and gone.
func (b *backlog) knows(key string) bool {
	_, ok := b.segments[key]
	return ok
}

// need makes the batch an input of the hour.
func (b *backlog) need(p *pending, h timegrid.Hour, now time.Time) {
	if slices.Contains(p.all, h) {
		return
	}
	b.unjudged = true
	p.all = append(p.all, h)
	w := b.hours[h]
	if w == nil {
		w = &hourWork{hour: h, ids: map[identity.Batch]struct{}{}, since: now}
		b.hours[h] = w
	}
	if len(w.ids) == 0 {
		w.since = now
	}
	w.ids[p.Identity] = struct{}{}
	p.hours = append(p.hours, h)
}

// covered takes the hour's batches off that blocks cover.
func (b *backlog) covered(h timegrid.Hour, covers func(identity.Batch) bool) {
	w := b.hours[h]
	if w == nil {
		return
	}
	for id := range w.ids {
		if !covers(id) {
			continue
		}
		delete(w.ids, id)
		p := b.batches[id]
		if p.hours = slices.DeleteFunc(p.hours, func(o timegrid.Hour) bool { return o == h }); len(p.hours) > 0 {
			continue
		}
		delete(b.batches, id)
		for _, key := range p.segments {
			s := b.segments[key]
			s.open--
			b.segments[key] = s
			b.settle(key)
		}
	}
	if len(w.ids) == 0 {
		delete(b.hours, h)
	}
}

// settle looks whether something of the segment is still pending.
func (b *backlog) settle(key string) {
	switch s := b.segments[key]; {
	case s.open > 0:
	case s.shelved > 0:
		delete(b.segments, key) // a second look reads it anew
	default:
		b.spent = append(b.spent, key)
	}
}

// deleted forgets a segment that is gone from the store.
func (b *backlog) deleted(key string) {
	delete(b.segments, key)
	b.spent = slices.DeleteFunc(b.spent, func(o string) bool { return o == key })
}

// inputs are the entries that wait for the hour, in the order of their identities.
func (b *backlog) inputs(h timegrid.Hour) []accepted.Batch {
	w := b.hours[h]
	if w == nil {
		return nil
	}
	out := make([]accepted.Batch, 0, len(w.ids))
	for id := range w.ids {
		out = append(out, b.batches[id].Batch)
	}
	slices.SortFunc(out, func(x, y accepted.Batch) int { return x.Identity.Compare(y.Identity) })
	return out
}

// due gives the hours to look at now, the one first that waits the longest; so hours that
// fail again and again take no other's turn.
func (b *backlog) due(now time.Time) []*hourWork {
	var out []*hourWork
	for _, w := range b.hours {
		if !now.Before(w.next) {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, func(x, y *hourWork) int {
		if c := x.next.Compare(y.next); c != 0 {
			return c
		}
		return int(x.hour - y.hour)
	})
	return out
}

// oldest is the first hour with pending batches.
func (b *backlog) oldest() (timegrid.Hour, bool) {
	first, ok := timegrid.Hour(0), false
	for h := range b.hours {
		if !ok || h < first {
			first, ok = h, true
		}
	}
	return first, ok
}
