package live

import (
	"cmp"
	"slices"
	"sort"

	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// The time of a group is divided into windows, and segments are merged within a window only: however late a batch
// comes, it overlaps no more than the segments of its own windows, and merging it in costs no more than these. While a
// window fills, segments are merged where this pays (pick). Once no batch has come for it for a while it is closed: what
// it has becomes one segment.
//
// All of this happens as batches arrive. Every sample is copied a few times, and a read finds few segments.

const (
	// mergeFan is how many neighbours of one tier become one segment.
	mergeFan = 8
	// closeAfter is how many later batches of the group close a window.
	closeAfter = 8
	// closeSoon is that number while memory is scarce.
	closeSoon = 1
	// closeQuiet is how many milliseconds without a batch close a window, if there is a later one: the last one still
	// fills.
	closeQuiet = 10_000
	// quietValues is about how many values are merged under the lock at once for such windows.
	quietValues = 1 << 18
	// windowRows is how many rows a window has at least, if an hour has as many. In a window so many rows wait
	// to become one segment.
	windowRows = 60
	// guessedWidth is that of a group whose first batch has one row.
	guessedWidth = 10 * 60_000
)

// widths of windows in milliseconds. Each divides the next or an hour: a segment lies in one hour, so that mostly all of it
// is published or nothing.
var widths = []int64{60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, timegrid.HourMS}

// widthFor is the width of windows for rows at such a distance, milliseconds.
func widthFor(distance int64) int64 {
	for _, w := range widths {
		if w >= distance*windowRows {
			return w
		}
	}
	return widths[len(widths)-1]
}

// widthOf is the width of windows for a group whose first batch has these times, nanoseconds.
func widthOf(times []int64) int64 {
	n := int64(len(times))
	if n < 2 {
		return guessedWidth
	}
	return widthFor((times[n-1] - times[0]) / nsPerMS / (n - 1))
}

// windowOf numbers the windows of a width. Like an hour, a window begins after its first millisecond.
func windowOf(ms, width int64) int64 {
	n := ms / width
	if ms%width > 0 {
		n++
	}
	return n - 1
}

// openWindow is a window that has to be closed; touched is the group's count of batches when the last one came for it, and
// at the time, in milliseconds.
type openWindow struct {
	number  int64
	touched uint64
	at      int64
}

// add puts the segments of a batch, which ascend and are of a window each, into the time order of the group, merges in
// their windows, and closes at most one other window. A batch may have a row in each of very many windows, so the segments
// of the group are copied once for all of them.
func (s *Store) add(g *shapeGroup, segs []*segment) {
	g.batches++
	next, from := make([]*segment, 0, len(g.segments)+len(segs)), 0
	for _, seg := range segs {
		begin, end := g.bounds(windowOf(seg.minT(), g.width))
		next = append(append(next, g.segments[from:begin]...), s.mergeAround(g.segments[begin:end:end], seg, len(g.series))...)
		from = end
	}
	// Readers hold the old slice, so it is replaced and not changed.
	g.segments = append(next, g.segments[from:]...)
	g.touch(segs, s.clock)
	s.closeOne(g)
	if !g.filling {
		g.filling = true
		s.filling = append(s.filling, g)
	}
}

// touch notes that a batch came for the windows of some segments.
func (g *shapeGroup) touch(segs []*segment, now int64) {
	g.open = slices.DeleteFunc(g.open, func(o openWindow) bool {
		_, ok := slices.BinarySearchFunc(segs, o.number, func(seg *segment, n int64) int { return cmp.Compare(windowOf(seg.minT(), g.width), n) })
		return ok
	})
	for _, seg := range segs {
		g.open = append(g.open, openWindow{windowOf(seg.minT(), g.width), g.batches, now})
	}
}

// closeOne closes the window that waits longest, if no batch came for it for long enough. That bounds the work of an
// insert. Windows with nothing to merge cost nothing, so those before it are closed with it: a batch may open many.
func (s *Store) closeOne(g *shapeGroup) {
	after := uint64(closeAfter)
	if s.scarce() {
		after = closeSoon
	}
	n, merged := 0, false
	for ; n < len(g.open) && !merged && g.open[n].touched+after <= g.batches; n++ {
		merged = s.close(g, g.open[n].number)
	}
	g.open = slices.Delete(g.open, 0, n)
}

// closeWaiting closes windows that no batch came for lately. Agents that send no more, or little, would else leave many
// segments to those who read. It reports whether there is more to do: it does a part, so that nobody waits long for the
// lock.
func (s *Store) closeWaiting(rounds *int) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for values := 0; *rounds > 0 && len(s.filling) > 0; {
		g := s.filling[0]
		for values < quietValues && len(g.open) > 1 && g.open[0].at+closeQuiet <= s.clock {
			if s.close(g, g.open[0].number) {
				values += windowRows * len(g.series)
			}
			g.open = slices.Delete(g.open, 0, 1)
		}
		if values >= quietValues {
			return true
		}
		*rounds--
		s.filling = s.filling[1:]
		if len(g.open) > 1 {
			s.filling = append(s.filling, g)
		} else {
			g.filling = false
		}
	}
	return false
}

// bounds are the indexes [from, to) of the segments of a window.
func (g *shapeGroup) bounds(window int64) (from, to int) {
	after := func(w int64) int {
		return sort.Search(len(g.segments), func(i int) bool { return windowOf(g.segments[i].minT(), g.width) > w })
	}
	return after(window - 1), after(window)
}

// close makes one segment of a window, or one for each set of start times. It reports whether there was anything to do.
func (s *Store) close(g *shapeGroup, window int64) (merged bool) {
	from, to := g.bounds(window)
	segs := g.segments[from:to]
	var classes [][]*segment
	for _, seg := range segs {
		i := slices.IndexFunc(classes, func(c []*segment) bool { return mergeable(c[0], seg) })
		if i < 0 {
			classes = append(classes, nil)
			i = len(classes) - 1
		}
		classes[i] = append(classes[i], seg)
	}
	for _, c := range classes {
		if len(c) > 1 {
			segs, _ = s.merge(segs, c, len(g.series))
			merged = true
		}
	}
	if merged {
		// Readers may hold the old slice, so it is replaced and not changed.
		g.segments = slices.Concat(g.segments[:from], segs, g.segments[to:])
	}
	return merged
}

// mergeAround adds a new segment to those of its window, merges there, and goes on with what this gives. It returns the
// segments that the window has then.
func (s *Store) mergeAround(window []*segment, seg *segment, series int) []*segment {
	at := sort.Search(len(window), func(i int) bool { return window[i].minT() > seg.minT() })
	window = slices.Concat(window[:at], []*segment{seg}, window[at:])
	for seg != nil {
		run := pick(window, seg)
		if len(run) < 2 {
			break
		}
		window, seg = s.merge(window, run, series)
	}
	return window
}

// pick chooses which of the segments of a window, which are sorted by minT, are merged with x, one of them.
//
// Those that overlap x in time, and each other, are merged once the smaller ones have half as many rows as the largest:
// it is copied again only when it grows by half. Else mergeFan neighbours of one tier are merged, so that a series is
// read along a column and not across batches.
func pick(window []*segment, x *segment) []*segment {
	overlapping := make([]*segment, 0, mergeFan)
	lo, hi, rows, largest := x.minT(), x.maxT(), 0, 0
	for grown := true; grown; {
		grown, rows, largest, overlapping = false, 0, 0, overlapping[:0]
		for _, o := range window {
			if o.minT() > hi || o.maxT() < lo || !mergeable(o, x) {
				continue
			}
			overlapping = append(overlapping, o)
			rows, largest = rows+len(o.ms), max(largest, len(o.ms))
			// A segment that reaches beyond the others may overlap some that were left out before it.
			if o.minT() < lo || o.maxT() > hi {
				lo, hi, grown = min(lo, o.minT()), max(hi, o.maxT()), true
			}
		}
	}
	if len(overlapping) > 1 && 2*(rows-largest) >= largest {
		return overlapping
	}
	at := slices.Index(window, x)
	from, to := at, at+1
	for from > 0 && window[from-1].tier() == x.tier() && mergeable(window[from-1], x) {
		from--
	}
	for to < len(window) && window[to].tier() == x.tier() && mergeable(window[to], x) {
		to++
	}
	if to-from < mergeFan {
		return nil
	}
	return window[from:to]
}

// tier of a segment: how often its rows were merged with neighbours.
func (s *segment) tier() int {
	tier := 0
	for n := len(s.ms) / mergeFan; n > 0; n /= mergeFan {
		tier++
	}
	return tier
}

// mergeable reports whether rows of both can stand in one segment.
func mergeable(a, b *segment) bool { return slices.Equal(a.starts, b.starts) }

// merge replaces some segments of a window by one, which it returns as well; nil if nothing of them is left.
func (s *Store) merge(window, run []*segment, series int) (kept []*segment, m *segment) {
	m = joinSegments(run, series, s.oldestOpen())
	for _, seg := range run {
		s.recharge(seg, -1)
	}
	kept = make([]*segment, 0, len(window))
	for _, seg := range window {
		if !slices.Contains(run, seg) {
			kept = append(kept, seg)
		}
	}
	if m != nil {
		s.copied += uint64(len(m.ms) * series)
		s.recharge(m, 1)
		at, _ := slices.BinarySearchFunc(kept, m.minT(), func(o *segment, t int64) int { return cmp.Compare(o.minT(), t) })
		kept = slices.Insert(kept, at, m)
	}
	return kept, m
}

// recharge adds the bytes of a segment to its batches, or takes them away.
func (s *Store) recharge(seg *segment, sign int64) {
	s.hasPacked(seg, sign)
	seg.charges(func(b *batch, bytes int64) {
		// The batches that were evicted have given everything back already.
		if b.removed.Load() == 0 {
			b.bytes += sign * bytes
			s.charge(b.agent, sign*bytes, 0)
		}
	})
}
