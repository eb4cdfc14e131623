package published

import (
	"cmp"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Samples of old hours expire, while rolled rows of them may be kept longer. Rows then stand in for samples:
// exactly in what SelectRolled returns of whole buckets, and approximately in Select. What an answer lacks because
// of that is noted.

// Reduced is a range of hours whose samples have expired, as an answer read them.
type Reduced struct {
	// Resolution of the rows that stood in for samples; timegrid.Raw when nothing was left.
	Resolution timegrid.Resolution
	// From and To are the first and the last of the hours, Hours how many they are.
	From, To timegrid.Hour
	Hours    int
}

// Expired reports that the hour's samples have expired. The hour must have been pinned.
func (q *Query) Expired(h timegrid.Hour) bool { return q.view(h).Expired(h, timegrid.Raw) }

// RowsHold reports that rolled rows of the hour have the batch's records. The hour must have been pinned.
func (q *Query) RowsHold(id identity.Batch, h timegrid.Hour) bool { return q.view(h).RowsCover(id, h) }

// AnyExpired reports that the samples of some hour of [mint, maxt], milliseconds, have expired. The range must
// have been pinned.
func (q *Query) AnyExpired(mint, maxt int64) bool {
	from, to, ok := q.span(mint, maxt)
	for h := from; ok && h <= to; h++ {
		if q.Expired(h) {
			return true
		}
	}
	return false
}

// Reduced returns the hours that the answer lacks samples of, finest rows first; hours that were answered exactly
// are not among them.
func (q *Query) Reduced() []Reduced {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := map[timegrid.Resolution]*Reduced{}
	for h, res := range q.reduced {
		r := at[res]
		if r == nil {
			r = &Reduced{res, h, h, 0}
			at[res] = r
		}
		r.From, r.To, r.Hours = min(r.From, h), max(r.To, h), r.Hours+1
	}
	out := make([]Reduced, 0, len(at))
	for _, r := range at {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b Reduced) int { return cmp.Compare(a.Resolution, b.Resolution) })
	return out
}

// reduce notes how hours were read. If an hour was read twice the worse counts: nothing is worse than coarse rows,
// and coarse rows are worse than fine ones.
func (q *Query) reduce(hours map[timegrid.Hour]timegrid.Resolution) {
	if len(hours) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reduced == nil {
		q.reduced = map[timegrid.Hour]timegrid.Resolution{}
	}
	for h, res := range hours {
		// Raw is the smallest value and means that nothing was left, so it can't simply be compared.
		if was, ok := q.reduced[h]; !ok || was != timegrid.Raw && (res == timegrid.Raw || res > was) {
			q.reduced[h] = res
		}
	}
}

// finest are the resolutions that stand in for samples, the finest first.
var finest = []timegrid.Resolution{timegrid.OneMinute, timegrid.FiveMinutes, timegrid.OneHour}

// standIns are the blocks whose rows are read for hours whose samples have expired.
type standIns struct {
	blocks map[timegrid.Resolution][]*catalog.Block
	hours  map[timegrid.Hour]timegrid.Resolution // Raw when nothing is left
}

// standIns finds, for each expired hour, the first of the resolutions that has all of it.
func (q *Query) standIns(from, to timegrid.Hour, of []timegrid.Resolution) standIns {
	s := standIns{map[timegrid.Resolution][]*catalog.Block{}, map[timegrid.Hour]timegrid.Resolution{}}
hours:
	for h := from; h <= to; h++ {
		v := q.view(h)
		if !v.Expired(h, timegrid.Raw) {
			continue
		}
		for _, res := range of {
			if blocks, ok := v.StandIns(h, res); ok {
				s.blocks[res] = append(s.blocks[res], blocks...)
				s.hours[h] = res
				// The finest that has all of the hour: a mixture within an hour would have uneven steps.
				continue hours
			}
		}
		s.hours[h] = timegrid.Raw
	}
	return s
}

// resolutions returns those in which blocks were found, ascending.
func (s standIns) resolutions() []timegrid.Resolution { return slices.Sorted(maps.Keys(s.blocks)) }

// missing reports that nothing is left of some hour.
func (s standIns) missing() bool {
	for _, res := range s.hours {
		if res == timegrid.Raw {
			return true
		}
	}
	return false
}

// reduceFound notes the hours of which nothing is left, and those of objects whose rows stand in. If the rows have
// no matching series, the samples had none either.
func (q *Query) reduceFound(s standIns, objects []*object) {
	hours := map[timegrid.Hour]timegrid.Resolution{}
	for h, res := range s.hours {
		if res == timegrid.Raw {
			hours[h] = res
		}
	}
	for _, ob := range objects {
		if res, ok := s.hours[ob.hour]; ok {
			hours[ob.hour] = res
		}
	}
	q.reduce(hours)
}

// everything is the coverage of an hour whose samples have expired. A late batch of it in memory is only a part of
// its samples, and would look like all of them.
var everything = []ledger.Range{{Start: 0, End: 1<<64 - 1}}
