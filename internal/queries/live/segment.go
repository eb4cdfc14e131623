package live

import (
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// segment is a dense matrix of one shape group: a sorted run of rows by time, values series-major. It never changes, so
// readers need no lock. All of its rows lie in one window of its group (window.go).
type segment struct {
	// ms are the row times in milliseconds, ascending; equal ones are allowed.
	ms []int64
	// sub are the nanoseconds below the millisecond; nil when all are 0.
	sub []int32
	// values, series-major; nil in a segment of histograms, and where packed has them.
	values []float64
	packed *packed
	// dense: packing it saves nothing.
	dense bool
	hists []*histogram.FloatHistogram
	// starts of the accumulation by series, milliseconds; nil when all are unknown.
	starts []int64
	// parts are the batches that the rows come from. A batch has at most one.
	parts []part
	// origins say of which part each row is; nil when the rows of every part stand together, in the order of parts.
	origins []origin
	// repeats says that two rows share a millisecond.
	repeats bool
	// What the parts have in common, so that mostly not each of them is asked: first and last are the lowest and the
	// highest number of their batches, and oneBoot says that these are of one boot. added is the newest version of them.
	first, last, added uint64
	oneBoot            bool
}

// part is the rows of one batch.
type part struct {
	batch  *batch
	first  uint64 // sequence number of the group's first record
	stride uint32 // rows that the group has in the batch
	skip   uint32 // those of them that come before the part
	rows   uint32
	// from and to are the first row in the segment and the one after the last. Rows of other parts may lie between.
	from, to uint32
}

// origin of a row: the k-th of a part.
type origin struct{ part, k uint32 }

// seq is the sequence number of row k of the part in series pos.
func (p *part) seq(pos, k uint32) uint64 {
	return p.first + uint64(pos)*uint64(p.stride) + uint64(p.skip) + uint64(k)
}

// summarize finds out what the parts have in common.
func (s *segment) summarize() {
	of := s.parts[0].batch.Identity
	s.first, s.last, s.added, s.oneBoot = of.SeqStart, of.SeqEnd, 0, true
	for i := range s.parts {
		b := s.parts[i].batch
		s.first, s.last, s.added = min(s.first, b.Identity.SeqStart), max(s.last, b.Identity.SeqEnd), max(s.added, b.added)
		s.oneBoot = s.oneBoot && b.Identity.BootOf() == of.BootOf()
	}
}

func (s *segment) minT() int64 { return s.ms[0] }
func (s *segment) maxT() int64 { return s.ms[len(s.ms)-1] }

// hour of all rows, as windows do not cross hours.
func (s *segment) hour() timegrid.Hour { return timegrid.HourOf(s.ms[0]) }

// origin of a row; at is the part of the row before it.
func (s *segment) origin(row int, at uint32) origin {
	if s.origins != nil {
		return s.origins[row]
	}
	for uint32(row) >= s.parts[at].to {
		at++
	}
	return origin{at, uint32(row) - s.parts[at].from}
}

// between are the rows [from, to) whose times lie in [mint, maxt].
func (s *segment) between(mint, maxt int64) (from, to int) { return samples.Between(s.ms, mint, maxt) }

// has reports whether part i has a row in [mint, maxt].
func (s *segment) has(i int, mint, maxt int64) bool {
	p := &s.parts[i]
	from, to := samples.Between(s.ms[p.from:p.to], mint, maxt)
	if s.origins == nil {
		return from < to
	}
	for _, o := range s.origins[int(p.from)+from : int(p.from)+to] {
		if o.part == uint32(i) {
			return true
		}
	}
	return false
}

// subOf is the nanoseconds of a row below its millisecond.
func (s *segment) subOf(row int) int32 {
	if s.sub == nil {
		return 0
	}
	return s.sub[row]
}

func (s *segment) start(pos uint32) int64 {
	if s.starts == nil {
		return 0
	}
	return s.starts[pos]
}

// unmasked reports that at this version every batch is there, and none of its numbers belongs to another.
func (s *segment) unmasked(version uint64) bool {
	for i := range s.parts {
		if b := s.parts[i].batch; !b.visible(version) || b.overlaps.Load() != nil {
			return false
		}
	}
	return true
}

// newSegments copies a group of a frame; first is the sequence number of its first record. Rows of several windows
// become several segments.
func newSegments(b *batch, first uint64, g *frame.Group, width int64) (out []*segment) {
	rows := len(g.Timestamps)
	starts := startsOf(g)
	for from := 0; from < rows; {
		to := from + 1
		ms, _ := floorMS(g.Timestamps[from])
		w := windowOf(ms, width)
		to += sort.Search(rows-to, func(i int) bool {
			ms, _ := floorMS(g.Timestamps[to+i])
			return windowOf(ms, width) != w
		})
		s := newSegment(g, from, to)
		s.starts = starts
		s.parts = []part{{batch: b, first: first, stride: uint32(rows), skip: uint32(from), rows: uint32(to - from), to: uint32(to - from)}}
		s.summarize()
		out = append(out, s)
		from = to
	}
	return out
}

// newSegment copies rows [from, to) of all series.
func newSegment(g *frame.Group, from, to int) *segment {
	all, rows := len(g.Timestamps), to-from
	s := &segment{ms: make([]int64, rows)}
	for i, t := range g.Timestamps[from:to] {
		ms, sub := floorMS(t)
		s.ms[i] = ms
		// Allocated at the first time that needs it: most times are whole milliseconds.
		if sub != 0 && s.sub == nil {
			s.sub = make([]int32, rows)
		}
		if s.sub != nil {
			s.sub[i] = sub
		}
		s.repeats = s.repeats || i > 0 && s.ms[i-1] == ms
	}
	if len(g.Histograms) > 0 {
		s.hists = make([]*histogram.FloatHistogram, 0, rows*len(g.Series))
		for pos := range g.Series {
			for row := from; row < to; row++ {
				s.hists = append(s.hists, ownHistogram(&g.Histograms[pos*all+row], g.Series[pos].Type))
			}
		}
		return s
	}
	s.values = make([]float64, 0, rows*len(g.Series))
	if rows == all {
		s.values = append(s.values, g.Values...)
		return s
	}
	for pos := range g.Series {
		s.values = append(s.values, g.Values[pos*all+from:pos*all+to]...)
	}
	return s
}

// startsOf gives the start times of the series, nil when all are unknown.
func startsOf(g *frame.Group) (starts []int64) {
	for i := range g.Series {
		if t := g.Series[i].StartTime; t != 0 {
			if starts == nil {
				starts = make([]int64, len(g.Series))
			}
			starts[i], _ = floorMS(t)
		}
	}
	return starts
}

// ownHistogram converts a histogram without sharing memory with the frame.
func ownHistogram(h *series.Histogram, t series.Type) *histogram.FloatHistogram {
	f := samples.FloatHistogram(h, t)
	f.PositiveBuckets, f.NegativeBuckets = slices.Clone(f.PositiveBuckets), slices.Clone(f.NegativeBuckets)
	f.CustomValues = slices.Clone(f.CustomValues)
	return f
}

// shareStarts makes s use the start times of before when they are equal: they rarely change.
func (s *segment) shareStarts(before *segment) {
	if s.starts == nil || len(before.starts) != len(s.starts) || !slices.Equal(s.starts, before.starts) {
		return
	}
	s.starts = before.starts
}

// overhead is what the segment takes besides its rows, and data what these take.
func (s *segment) overhead() int64 {
	return segmentOverhead + int64(len(s.parts))*partBytes + int64(len(s.starts))*8
}

func (s *segment) data() int64 {
	n := int64(len(s.ms))*8 + int64(len(s.sub))*4 + int64(len(s.values))*8 + int64(len(s.origins))*8
	if s.packed != nil {
		n += s.packed.size()
	}
	for _, h := range s.hists {
		n += int64(h.Size()) + 8
	}
	return n
}

// charges calls fn with each part and its share of the segment's bytes: of the rows by their number, of the rest an equal
// part.
func (s *segment) charges(fn func(b *batch, bytes int64)) {
	overhead, data, parts := s.overhead(), s.data(), int64(len(s.parts))
	for i := range s.parts {
		p := &s.parts[i]
		fn(p.batch, overhead/parts+data*int64(p.rows)/int64(len(s.ms)))
	}
}

const nsPerMS = 1_000_000

// floorMS is the millisecond that contains t (nanoseconds), and the rest.
func floorMS(t int64) (ms int64, sub int32) {
	ms, rest := t/nsPerMS, t%nsPerMS
	if rest < 0 {
		ms, rest = ms-1, rest+nsPerMS
	}
	return ms, int32(rest)
}
