package live

import (
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// segment is a dense matrix of one shape group: rows by time, values series-major. It never changes, so readers
// need no lock.
type segment struct {
	// ms are the row times in milliseconds, ascending; equal ones are allowed.
	ms []int64
	// sub are the nanoseconds below the millisecond; nil when all are 0.
	sub []int32
	// values, series-major; nil in a segment of histograms.
	values []float64
	hists  []*histogram.FloatHistogram
	// starts of the accumulation by series, milliseconds; nil when all are unknown.
	starts []int64
	// parts are the batches that the rows come from, in row order.
	parts []part
	// repeats says that two rows share a millisecond.
	repeats bool
}

// part is the rows of one batch.
type part struct {
	batch *batch
	first uint64 // sequence number of the group's first record
	row   int    // first row in the segment
	rows  int
}

// seq is the sequence number of a row of series pos.
func (p part) seq(pos uint32, row int) uint64 {
	return p.first + uint64(pos)*uint64(p.rows) + uint64(row-p.row)
}

func (s *segment) minT() int64 { return s.ms[0] }
func (s *segment) maxT() int64 { return s.ms[len(s.ms)-1] }

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

// plain reports that at this version every row counts as it is.
func (s *segment) plain(version uint64) bool {
	if s.repeats {
		return false
	}
	for _, p := range s.parts {
		if !p.batch.visible(version) || p.batch.overlaps.Load() != nil {
			return false
		}
	}
	return true
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

// newSegment copies the columns of a group.
func newSegment(b *batch, first uint64, g *frame.Group) *segment {
	rows := len(g.Timestamps)
	s := &segment{ms: make([]int64, rows), parts: []part{{b, first, 0, rows}}}
	for i, t := range g.Timestamps {
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
		s.hists = make([]*histogram.FloatHistogram, len(g.Histograms))
		for i := range g.Histograms {
			s.hists[i] = ownHistogram(&g.Histograms[i], g.Series[i/rows].Type)
		}
	} else {
		s.values = append(make([]float64, 0, len(g.Values)), g.Values...)
	}
	for i := range g.Series {
		if t := g.Series[i].StartTime; t != 0 {
			if s.starts == nil {
				s.starts = make([]int64, len(g.Series))
			}
			s.starts[i], _ = floorMS(t)
		}
	}
	return s
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
	if s.starts == nil || len(before.starts) != len(s.starts) {
		return
	}
	for i, t := range s.starts {
		if before.starts[i] != t {
			return
		}
	}
	s.starts = before.starts
}

func (s *segment) bytes() int64 {
	n := segmentOverhead + int64(len(s.ms))*8 + int64(len(s.sub))*4 + int64(len(s.values))*8 + int64(len(s.starts))*8
	for _, h := range s.hists {
		n += int64(h.Size()) + 8
	}
	return n
}

// insert puts seg into the time order of the group.
func (g *shapeGroup) insert(seg *segment) {
	n := len(g.segments)
	if n == 0 || seg.minT() > g.segments[n-1].minT() {
		g.segments = append(g.segments, seg) // safe: readers hold a shorter slice of the same array
		return
	}
	// A batch that arrives out of order goes in the middle, in a new slice, since readers hold the old
	// one.
	i := sort.Search(n, func(i int) bool { return g.segments[i].minT() > seg.minT() })
	grown := make([]*segment, 0, n+n/8+1)
	g.segments = append(append(append(grown, g.segments[:i]...), seg), g.segments[i:]...)
}
