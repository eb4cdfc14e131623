package published

import (
	"cmp"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/ledger"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// Samples of old hours expire, rolled rows may live on. Rows then stand in for the
// samples: exactly in what SelectRolled gives of whole buckets, and nearly in Select. What
// an answer lacks for it is noted.

// Reduced is a stretch of hours whose samples have expired, as an answer read them.
type Reduced struct {
	// Window of the rows that stood in for samples; window.Raw when nothing was left.
	Window window.Window
	// From and To are the first and the last of the hours, Hours how many they are.
	From, To window.Hour
	Hours    int
}

// Expired reports that the hour's samples have expired. It has been pinned.
func (q *Query) Expired(h window.Hour) bool { return q.view(h).Expired(h, window.Raw) }

// RowsHold reports that rolled rows of the hour have the batch's records. It has been pinned.
func (q *Query) RowsHold(id identity.Batch, h window.Hour) bool { return q.view(h).RowsCover(id, h) }

// AnyExpired reports that the samples of some hour of [mint, maxt], milliseconds, have
// expired. The range has been pinned.
func (q *Query) AnyExpired(mint, maxt int64) bool {
	from, to, ok := q.span(mint, maxt)
	for h := from; ok && h <= to; h++ {
		if q.Expired(h) {
			return true
		}
	}
	return false
}

// Reduced says which hours the answer lacks samples of, finest rows first; what was
// answered exactly is not among them.
func (q *Query) Reduced() []Reduced {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := map[window.Window]*Reduced{}
	for h, w := range q.reduced {
		r := at[w]
		if r == nil {
			r = &Reduced{w, h, h, 0}
			at[w] = r
		}
		r.From, r.To, r.Hours = min(r.From, h), max(r.To, h), r.Hours+1
	}
	out := make([]Reduced, 0, len(at))
	for _, r := range at {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b Reduced) int { return cmp.Compare(a.Window, b.Window) })
	return out
}

// reduce notes how hours were read. Nothing left is worse than coarse rows, coarse rows
// are worse than fine ones.
func (q *Query) reduce(hours map[window.Hour]window.Window) {
	if len(hours) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reduced == nil {
		q.reduced = map[window.Hour]window.Window{}
	}
	for h, w := range hours {
		if was, ok := q.reduced[h]; !ok || was != window.Raw && (w == window.Raw || w > was) {
			q.reduced[h] = w
		}
	}
}

// finest are the windows that stand in for samples, the nearest to them first.
var finest = []window.Window{window.OneMinute, window.FiveMinutes, window.OneHour}

// standIns are the sets whose rows are read of hours whose samples have expired.
type standIns struct {
	sets  map[window.Window][]*catalog.Set
	hours map[window.Hour]window.Window // Raw where nothing is left
}

// standIns finds, for each expired hour, the first of the windows that has all of it.
func (q *Query) standIns(from, to window.Hour, of []window.Window) standIns {
	s := standIns{map[window.Window][]*catalog.Set{}, map[window.Hour]window.Window{}}
hours:
	for h := from; h <= to; h++ {
		v := q.view(h)
		if !v.Expired(h, window.Raw) {
			continue
		}
		for _, w := range of {
			if sets, ok := v.Instead(h, w); ok {
				s.sets[w] = append(s.sets[w], sets...)
				s.hours[h] = w
				continue hours
			}
		}
		s.hours[h] = window.Raw
	}
	return s
}

// windows in which sets were found, in order.
func (s standIns) windows() []window.Window { return slices.Sorted(maps.Keys(s.sets)) }

// missing reports that some hour has nothing that stands in.
func (s standIns) missing() bool {
	for _, w := range s.hours {
		if w == window.Raw {
			return true
		}
	}
	return false
}

// reduceFound notes the hours of which nothing is left, and those of objects whose rows
// stand in: where the rows have no series that matches, the samples had none either.
func (q *Query) reduceFound(s standIns, objects []*object) {
	hours := map[window.Hour]window.Window{}
	for h, w := range s.hours {
		if w == window.Raw {
			hours[h] = w
		}
	}
	for _, ob := range objects {
		if w, ok := s.hours[ob.hour]; ok {
			hours[ob.hour] = w
		}
	}
	q.reduce(hours)
}

// everything is the coverage of an hour whose samples have expired: a late batch of it
// that is in memory is some of its samples, and rows of the others are there or nothing.
var everything = []ledger.Range{{Start: 0, End: 1<<64 - 1}}
