package rollup

import (
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// Pending batches have a bound. Where it is reached, what waits for its hour's end, or
// can't be rolled up, must not keep a shard from its intake: late batches stand there, and
// batches of hours that are over.

// stuckAfter is how often an hour, or a batch, has failed for good before it is shelved.
const stuckAfter = 2

// relieve makes room when there is none. What can't be rolled up as things are is
// forgotten: its segments stay in the store, and are read again at the next second look.
// Then the fullest hours are rolled up early.
func (o *owner) relieve() {
	if o.s.room(o) {
		return
	}
	n := o.log.shelve(func(p *pending) bool {
		if l := o.out[p.Identity]; l.tries >= stuckAfter {
			delete(o.out, p.Identity)
			return true
		}
		return !slices.ContainsFunc(p.hours, func(h timegrid.Hour) bool {
			return o.log.hours[h].stuck < stuckAfter && !o.isAside(h, p.Agent)
		})
	})
	if n > 0 {
		o.s.log.Warn("batches that can't be rolled up make room for others; they are tried again later", "shard", o.grant.Shard,
			"batches", n, "after", o.s.cfg.Intake.Recheck)
	}
	if !o.s.room(o) {
		o.log.crowd()
	}
}

// shelve forgets batches; their segments stay, and are not known any more once nothing
// else of them is pending.
func (b *backlog) shelve(which func(*pending) bool) (n int) {
	for id, p := range b.batches {
		if !which(p) {
			continue
		}
		n++
		delete(b.batches, id)
		for _, h := range p.hours {
			w := b.hours[h]
			if delete(w.ids, id); len(w.ids) == 0 {
				delete(b.hours, h)
			}
		}
		for _, key := range p.segments {
			s := b.segments[key]
			s.open--
			s.shelved++
			b.segments[key] = s
			b.settle(key)
		}
	}
	b.shelved += n
	return n
}

// crowd marks the fullest hours, until they have half of what is pending.
func (b *backlog) crowd() {
	hours := slices.Collect(maps.Values(b.hours))
	slices.SortFunc(hours, func(x, y *hourWork) int {
		if len(x.ids) != len(y.ids) {
			return len(y.ids) - len(x.ids)
		}
		return int(x.hour - y.hour)
	})
	for i, left := 0, len(b.batches)/2; i < min(len(hours), hoursAtOnce) && left >= 0; i++ {
		w := hours[i]
		left -= len(w.ids)
		if !w.crowded && w.fails == 0 {
			w.crowded = true
			w.next = w.since // a look tells when
		}
	}
}
