package chunk

import (
	"cmp"
	"crypto/sha256"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Options of a Writer. The zero value of a field means its default.
type Options struct {
	// BlockSeries and BlockValues bound a block: a reader of one series fetches one block.
	BlockSeries int // 512
	BlockValues int // 262,144
	// Rows of a series in one block; longer series are split in time: 8,192.
	Rows int

	noReferences bool // for measurements
}

func (o Options) orDefault() Options {
	if o.BlockSeries <= 0 {
		o.BlockSeries = 512
	}
	if o.BlockValues <= 0 {
		o.BlockValues = 256 << 10
	}
	if o.Rows <= 0 {
		o.Rows = 8 << 10
	}
	return o
}

// Files are a chunk and its index, and what a manifest says about them.
type Files struct {
	// Chunk and Index are valid until the next Reset of the Writer.
	Chunk, Index []byte
	// ID is the SHA-256 of Chunk; IndexID that of Index.
	ID, IndexID  identity.Digest
	FooterOffset int64
	Series       int
	Samples      uint64 // rows of all series
	MinT, MaxT   int64  // of T, Unix nanoseconds
}

// Writer makes one chunk and its index of all series that are added to it. Equal series
// give equal files whatever the order of adding. It reuses its memory after Reset.
type Writer struct {
	opt    Options
	series []*Series
	block  blockWriter
	index  Index
	tables tableWriter
	sets   map[uint64][]uint32 // of times, by hash
	seen   map[timeAddress]int // the same by where they are in memory
	times  []timeSet
	parts  []pendingPart
	chunk  []byte
	file   fileWriter
}

type pendingPart struct {
	series   int // in order
	from, to int // rows
	slice    int
	times    int
}

// NewWriter returns an empty Writer.
func NewWriter(o Options) *Writer { return &Writer{opt: o.orDefault()} }

// Reset forgets all series.
func (w *Writer) Reset() {
	clear(w.series)
	w.series = w.series[:0]
}

// Add checks s and keeps it until Finish: neither it nor its columns may change until
// then. Errors are *Error with BadSeries.
func (w *Writer) Add(s *Series) error {
	// Series of one agent mostly share T, which then needs one look.
	known := len(w.series) > 0 && len(s.T) > 0 && len(w.series[len(w.series)-1].T) == len(s.T) && &w.series[len(w.series)-1].T[0] == &s.T[0]
	if err := s.validate(known); err != nil {
		return err
	}
	w.series = append(w.series, s)
	return nil
}

// nameLabel holds the metric's name.
const nameLabel = "__name__"

// Name of the metric: the value of __name__.
func (s *Series) Name() string {
	for _, l := range s.Labels {
		if l.Name == nameLabel {
			return l.Value
		}
	}
	return ""
}

func (s *Series) validate(ascends bool) error {
	named := false
	lim := DefaultLimits()
	if len(s.Labels) > lim.SeriesLabels {
		return refuse(BadSeries, "%d labels, at most %d", len(s.Labels), lim.SeriesLabels)
	}
	for i, l := range s.Labels {
		if l.Name == "" || l.Value == "" || len(l.Name) > lim.StringBytes || len(l.Value) > lim.StringBytes {
			return refuse(BadSeries, "label %q=%.100q is empty or too long", l.Name, l.Value)
		}
		if i > 0 && s.Labels[i-1].Name >= l.Name {
			return refuse(BadSeries, "label %q is not sorted or stands twice", l.Name)
		}
		named = named || l.Name == nameLabel
	}
	if !named {
		return refuse(BadSeries, "no label %s", nameLabel)
	}
	if len(s.Agent) > lim.StringBytes || len(s.Unit) > lim.StringBytes {
		return refuse(BadSeries, "agent or unit is too long")
	}
	if len(s.T) == 0 {
		return refuse(BadSeries, "no rows")
	}
	for i := 1; i < len(s.T) && !ascends; i++ {
		if s.T[i] <= s.T[i-1] {
			return refuse(BadSeries, "time of row %d is not after that of row %d", i, i-1)
		}
	}
	mask := s.mask()
	if mask&^timeColumns == 0 {
		return refuse(BadSeries, "no columns")
	}
	for rest := mask; rest != 0; rest &= rest - 1 {
		bit := rest & -rest
		if s.length(bit) != len(s.T) {
			return refuse(BadSeries, "column of %d rows, T has %d", s.length(bit), len(s.T))
		}
		if bit&histColumns != 0 {
			if err := validateHistograms(*s.hist(bit)); err != nil {
				return err
			}
		}
	}
	return nil
}

// validateHistograms checks what the format needs: spans that fit their buckets.
func validateHistograms(v []frame.Histogram) error {
	for i := range v {
		h := &v[i]
		for k, spans := range [...][]int32{h.PositiveSpans, h.NegativeSpans} {
			n := len(h.PositiveBuckets)
			if k == 1 {
				n = len(h.NegativeBuckets)
			}
			total := 0
			for j, x := range spans {
				if j > 0 && x < 0 {
					return refuse(BadSeries, "histogram of row %d: negative span", i)
				}
				if j%2 == 1 {
					total += int(x)
				}
			}
			if len(spans)%2 != 0 || total != n {
				return refuse(BadSeries, "histogram of row %d: spans of %d buckets, %d counts", i, total, n)
			}
		}
	}
	return nil
}

// Finish encodes all series. Errors are *Error with BadSeries: no series, or one twice.
func (w *Writer) Finish() (*Files, error) {
	if len(w.series) == 0 {
		return nil, refuse(BadSeries, "no series")
	}
	x := &w.index
	if err := w.tables.fill(x, w.series); err != nil {
		return nil, err
	}
	w.cut()
	w.chunk = append(w.chunk[:0], chunkMagic...)
	w.writeValues()
	w.writeTimes()
	f := &Files{FooterOffset: int64(len(w.chunk)), Series: len(w.series)}
	w.chunk = appendFooter(w.chunk, x.blocks, x.timeBlocks)
	f.Chunk, f.ID = w.chunk, sha256.Sum256(w.chunk)
	x.Chunk, x.FooterOffset, x.Size = f.ID, f.FooterOffset, int64(len(w.chunk))
	f.Index = w.file.append(x)
	f.IndexID = sha256.Sum256(f.Index)
	for i, s := range w.series {
		f.Samples += uint64(len(s.T))
		if i == 0 || s.T[0] < f.MinT {
			f.MinT = s.T[0]
		}
		if i == 0 || s.T[len(s.T)-1] > f.MaxT {
			f.MaxT = s.T[len(s.T)-1]
		}
	}
	return f, nil
}

// cut splits series into parts, in the order of the blocks, and finds equal times.
func (w *Writer) cut() {
	w.parts, w.times = w.parts[:0], w.times[:0]
	if w.sets == nil {
		w.sets, w.seen = map[uint64][]uint32{}, map[timeAddress]int{}
	}
	clear(w.sets)
	clear(w.seen)
	for i, s := range w.series {
		for from, k := 0, 0; from < len(s.T); from, k = from+w.opt.Rows, k+1 {
			w.parts = append(w.parts, pendingPart{series: i, from: from, to: min(from+w.opt.Rows, len(s.T)), slice: k})
		}
	}
	slices.SortFunc(w.parts, func(a, b pendingPart) int {
		return cmp.Or(cmp.Compare(a.slice, b.slice), cmp.Compare(a.series, b.series))
	})
	for i := range w.parts {
		p := &w.parts[i]
		c := w.series[p.series].slice(p.from, p.to)
		p.times = w.timesOf(timeSet{c.T, c.FirstT, c.LastT})
	}
}

// timesOf gives the number of a set of times, new or seen before.
func (w *Writer) timesOf(s timeSet) int {
	at := s.address()
	if k, ok := w.seen[at]; ok {
		return k
	}
	h := s.hash()
	for _, k := range w.sets[h] {
		if w.times[k].equal(s) {
			w.seen[at] = int(k)
			return int(k)
		}
	}
	w.seen[at] = len(w.times)
	w.times = append(w.times, s)
	w.sets[h] = append(w.sets[h], uint32(len(w.times)-1))
	return len(w.times) - 1
}

// histogramValues is how many values a histogram counts for in the size of a block.
const histogramValues = 32

func (w *Writer) writeValues() {
	b := &w.block
	b.noRefs = w.opt.noReferences
	b.reset()
	values := 0
	end := func() {
		if len(b.slots) == 0 {
			return
		}
		from := len(w.chunk)
		w.chunk = b.finish(w.chunk, kindValues)
		w.index.blocks = append(w.index.blocks, Range{int64(from), int64(len(w.chunk) - from)})
		b.reset()
		values = 0
	}
	for i := range w.parts {
		p := &w.parts[i]
		c := w.series[p.series].slice(p.from, p.to)
		mask := c.mask() &^ timeColumns
		n := (popcount(mask) + (histogramValues-1)*popcount(mask&histColumns)) * c.Rows()
		if len(b.slots) > 0 && (len(b.slots) >= w.opt.BlockSeries || values+n > w.opt.BlockValues || p.slice != w.parts[i-1].slice) {
			end()
		}
		values += n
		w.tables.addPart(p.series, part{uint32(len(w.index.blocks)), uint32(len(b.slots)), uint32(p.times)})
		b.add(c, p.times)
	}
	end()
	w.tables.sortParts(&w.index)
}

// timeBlockRows bounds the rows of a block of times.
const timeBlockRows = 64 << 10

func (w *Writer) writeTimes() {
	b := &w.block
	b.reset()
	rows := 0
	end := func() {
		from := len(w.chunk)
		w.chunk = b.finish(w.chunk, kindTimes)
		w.index.timeBlocks = append(w.index.timeBlocks, Range{int64(from), int64(len(w.chunk) - from)})
		b.reset()
		rows = 0
	}
	for _, s := range w.times {
		n := len(s.t)
		if s.first != nil {
			n *= timeCells
		}
		if len(b.slots) > 0 && (rows+n > timeBlockRows || len(b.slots) >= w.opt.BlockSeries) {
			end()
		}
		rows += n
		w.index.times = append(w.index.times, timeInfo{
			block: uint32(len(w.index.timeBlocks)), slot: uint32(len(b.slots)), rows: uint32(len(s.t)), minT: s.t[0], maxT: s.t[len(s.t)-1]})
		b.addTimes(s)
	}
	end()
}
