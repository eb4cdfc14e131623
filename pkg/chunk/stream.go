package chunk

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// Stream makes one chunk and its index of series that come in their order, and keeps of
// the values no more than a group of series: a Writer keeps them all. Files of a Stream
// differ from those of a Writer in the order of blocks only where series are split in
// time: all parts of a group stand together. Equal series give equal files.
type Stream struct {
	w      *Writer
	shells []*Series // labels only
	group  []*Series
	rows   []int // of each series of the group
	values int   // of the group's first parts
	total  int   // of the group
	times  int   // values of times that are kept
	f      Files
	err    error
}

// groupValues bounds the values that a Stream keeps before it encodes them.
const groupValues = 4 << 20

// NewStream returns an empty Stream.
func NewStream(o Options) *Stream {
	s := &Stream{w: NewWriter(o)}
	s.Reset()
	return s
}

// Reset forgets everything.
func (s *Stream) Reset() {
	w := s.w
	*s = Stream{w: w, shells: s.shells[:0], group: s.group[:0], rows: s.rows[:0]}
	w.Reset()
	w.times, w.chunk = w.times[:0], append(w.chunk[:0], chunkMagic...)
	w.tables.parts = w.tables.parts[:0]
	w.index.blocks, w.index.timeBlocks = w.index.blocks[:0], w.index.timeBlocks[:0]
	if w.sets == nil {
		w.sets, w.seen = map[uint64][]uint32{}, map[timeAddress]int{}
	}
	clear(w.sets)
	w.block.noRefs = w.opt.noReferences
	w.block.reset()
}

// Compare is the order of series: name, other labels, agent, type, unit. a and b are
// sorted by label name and have __name__.
func Compare(a, b *SeriesRef) int {
	return cmp.Or(strings.Compare(nameOf(a.Labels), nameOf(b.Labels)), compareLabels(a.Labels, b.Labels),
		strings.Compare(a.Agent, b.Agent), cmp.Compare(a.Type, b.Type), strings.Compare(a.Unit, b.Unit))
}

func nameOf(ls []frame.Label) string {
	for _, l := range ls {
		if l.Name == nameLabel {
			return l.Value
		}
	}
	return ""
}

// compareLabels leaves out the name.
func compareLabels(a, b []frame.Label) int {
	i, k := 0, 0
	for {
		if i < len(a) && a[i].Name == nameLabel {
			i++
		}
		if k < len(b) && b[k].Name == nameLabel {
			k++
		}
		if i >= len(a) || k >= len(b) {
			return cmp.Compare(len(a)-i, len(b)-k)
		}
		if c := cmp.Or(strings.Compare(a[i].Name, b[k].Name), strings.Compare(a[i].Value, b[k].Value)); c != 0 {
			return c
		}
		i, k = i+1, k+1
	}
}

// Add takes the next series. It keeps the columns until it has a group of them: what
// Flushed counts is free to be used again. Errors are *Error with BadSeries, for good.
func (s *Stream) Add(x *Series) error {
	if s.err != nil {
		return s.err
	}
	if s.err = x.validate(false); s.err != nil {
		return s.err
	}
	if n := len(s.shells); n > 0 {
		last := s.shells[n-1]
		if Compare(&SeriesRef{Agent: last.Agent, Labels: last.Labels, Type: last.Type, Unit: last.Unit},
			&SeriesRef{Agent: x.Agent, Labels: x.Labels, Type: x.Type, Unit: x.Unit}) >= 0 {
			s.err = refuse(BadSeries, "%q of agent %q is out of order", x.Labels, x.Agent)
			return s.err
		}
	}
	n, first := x.values(len(x.T)), x.values(min(len(x.T), s.w.opt.Rows))
	if len(s.group) > 0 && (len(s.group) >= s.w.opt.BlockSeries || s.values+first > s.w.opt.BlockValues || s.total+n > groupValues) {
		s.flush()
	}
	s.group = append(s.group, x)
	s.values += first
	s.total += n
	s.shells = append(s.shells, &Series{Agent: x.Agent, Labels: x.Labels, Type: x.Type, Unit: x.Unit})
	f := &s.f
	if len(s.shells) == 1 || x.T[0] < f.MinT {
		f.MinT = x.T[0]
	}
	if len(s.shells) == 1 || x.T[len(x.T)-1] > f.MaxT {
		f.MaxT = x.T[len(x.T)-1]
	}
	f.Series++
	f.Samples += uint64(len(x.T))
	return nil
}

// values that rows of the series count for.
func (s *Series) values(rows int) int {
	m := s.mask() &^ timeColumns
	return (popcount(m) + (histogramValues-1)*popcount(m&histColumns)) * rows
}

// Bytes is the size of the chunk so far, without pending series, times and footer.
func (s *Stream) Bytes() int { return len(s.w.chunk) }

// TimeValues counts the times that are kept until the end.
func (s *Stream) TimeValues() int { return s.times }

// flush encodes the group: first parts of all series, then second ones, and so on.
func (s *Stream) flush() {
	w, b := s.w, &s.w.block
	from := len(s.shells) - len(s.group)
	if from < 0 {
		from = 0
	}
	values := 0
	end := func() {
		if len(b.slots) == 0 {
			return
		}
		at := len(w.chunk)
		w.chunk = b.finish(w.chunk, kindValues)
		w.index.blocks = append(w.index.blocks, Range{int64(at), int64(len(w.chunk) - at)})
		b.reset()
		values = 0
	}
	for row, more := 0, true; more; row += w.opt.Rows {
		more = false
		for i, x := range s.group {
			if row >= len(x.T) {
				continue
			}
			to := min(row+w.opt.Rows, len(x.T))
			more = more || to < len(x.T)
			n := x.values(to - row)
			if len(b.slots) > 0 && (len(b.slots) >= w.opt.BlockSeries || values+n > w.opt.BlockValues) {
				end()
			}
			values += n
			c := x.slice(row, to)
			set := s.timesOf(timeSet{c.T, c.FirstT, c.LastT})
			w.tables.addPart(from+i, part{uint32(len(w.index.blocks)), uint32(len(b.slots)), uint32(set)})
			b.add(c, set)
		}
		end()
	}
	clear(s.group)
	s.group, s.values, s.total = s.group[:0], 0, 0
}

// timesOf gives the number of a set of times; a new one is copied.
func (s *Stream) timesOf(t timeSet) int {
	w := s.w
	h := t.hash()
	for _, k := range w.sets[h] {
		if w.times[k].equal(t) {
			return int(k)
		}
	}
	w.times = append(w.times, timeSet{slices.Clone(t.t), slices.Clone(t.first), slices.Clone(t.last)})
	w.sets[h] = append(w.sets[h], uint32(len(w.times)-1))
	s.times += len(t.t) + len(t.first) + len(t.last)
	return len(w.times) - 1
}

// Finish ends the chunk. Its files are valid until the next Reset. Errors are *Error.
func (s *Stream) Finish() (*Files, error) {
	if s.err != nil {
		return nil, s.err
	}
	if len(s.shells) == 0 {
		return nil, refuse(BadSeries, "no series")
	}
	s.flush()
	w, x := s.w, &s.w.index
	// The tables want all labels at once, and begin anew; blocks and parts stand.
	blocks, parts := slices.Clone(x.blocks), slices.Clone(w.tables.parts)
	order := slices.Clone(s.shells)
	if err := w.tables.fill(x, s.shells); err != nil {
		return nil, err
	}
	if !slices.Equal(order, s.shells) {
		return nil, refuse(BadSeries, "series are not in their order")
	}
	x.blocks, w.tables.parts = blocks, parts
	w.tables.sortParts(x)
	w.writeTimes()
	f := &s.f
	f.FooterOffset = int64(len(w.chunk))
	w.chunk = appendFooter(w.chunk, x.blocks, x.timeBlocks)
	f.Chunk, f.ID = w.chunk, sha256.Sum256(w.chunk)
	x.Chunk, x.FooterOffset, x.Size = f.ID, f.FooterOffset, int64(len(w.chunk))
	f.Index = w.file.append(x)
	f.IndexID = sha256.Sum256(f.Index)
	return f, nil
}

// AppendRows adds rows [from, to) of o, which are later. Starts that one of them does not
// have are unknown. It shares the histograms of o. Errors are *Error with BadSeries: other
// columns differ.
func (c *Columns) AppendRows(o *Columns, from, to int) error {
	part := o.slice(from, to)
	if len(c.T) == 0 {
		*c = Columns{}
		for i := range columns {
			bit := Mask(1) << i
			switch {
			case part.mask()&bit == 0 || bit == ColStart:
			case bit&histColumns != 0:
				*c.hist(bit) = []frame.Histogram{}
			case bit&countColumns != 0:
				*c.count(bit) = []uint32{}
			default:
				*c.float(bit) = []float64{}
			}
		}
		if part.FirstT != nil {
			c.FirstT = []int64{}
		}
		if part.LastT != nil {
			c.LastT = []int64{}
		}
	}
	if (c.mask()^part.mask())&^ColStart != 0 {
		return refuse(BadSeries, "columns %#x and then %#x", c.mask(), part.mask())
	}
	switch {
	case c.Start == nil && part.Start != nil:
		c.Start = make([]int64, len(c.T), len(c.T)+len(part.T))
	case c.Start != nil && part.Start == nil:
		part.Start = make([]int64, len(part.T))
	}
	return c.append(&part)
}

// Cut leaves the rows [from, to); it shares the memory.
func (c *Columns) Cut(from, to int) Columns { return c.slice(from, to) }
