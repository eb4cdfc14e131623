package chunk

import (
	"cmp"
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Options of a Writer. The zero value of a field means its default.
type Options struct {
	// BlockSeries and BlockValues bound a block: a reader of one series fetches one block.
	BlockSeries int // 512
	BlockValues int // 262,144
	// Rows of a series in one block; longer series are split in time: 8,192.
	Rows int
	// Encoding of the blocks: Integers.
	Encoding Encoding

	codec codec // of tests, in the place of that of Encoding
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
	if o.Encoding == DefaultEncoding {
		o.Encoding = Integers
	}
	if o.codec == nil {
		o.codec = codecOf(o.Encoding)
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

// count adds a series.
func (f *Files) count(c *Columns) {
	if first, last := c.T[0], c.T[len(c.T)-1]; f.Series == 0 {
		f.MinT, f.MaxT = first, last
	} else {
		f.MinT, f.MaxT = min(f.MinT, first), max(f.MaxT, last)
	}
	f.Series++
	f.Samples += uint64(len(c.T))
}

// Writer makes one chunk and its index of all series that are added to it. Equal series
// give equal files whatever the order of adding. It reuses its memory after Reset.
type Writer struct {
	builder
	series []*Series
	parts  []pendingPart
	// tabled are the series that the tables of the index are of, in the order of adding, and again the number of those
	// that were added again in their places.
	tabled []series.ID
	again  int
}

// pendingPart is rows of one series that go into one block.
type pendingPart struct {
	series   int // in order
	from, to int // rows
	number   int // of the part in its series
}

// NewWriter returns an empty Writer.
func NewWriter(o Options) *Writer {
	w := &Writer{}
	w.init(o)
	return w
}

// Reset begins the next chunk. The resolutions of an hour have the same series: labels that come again in the same
// place and the same memory are not looked at again, so they must not change before Forget.
func (w *Writer) Reset() {
	clear(w.series)
	w.series, w.again = w.series[:0], 0
}

// Forget is Reset, and keeps nothing of the caller's labels in memory.
func (w *Writer) Forget() {
	w.Reset()
	clear(w.tabled)
	w.tabled = w.tabled[:0]
}

// isTabled reports whether the next series is that of the tables at its place.
func (w *Writer) isTabled(id *series.ID) bool {
	at := len(w.series)
	if at >= len(w.tabled) || at != w.again || len(id.Labels) == 0 {
		return false
	}
	t := &w.tabled[at]
	return len(t.Labels) == len(id.Labels) && &t.Labels[0] == &id.Labels[0] && t.Agent == id.Agent && t.Type == id.Type && t.Unit == id.Unit
}

// Add checks s and keeps it until Finish: neither it nor its columns may change until
// then. Errors are *Error with BadSeries, or UnknownEncoding for that of the options.
func (w *Writer) Add(s *Series) error {
	if w.err != nil {
		return w.err
	}
	// Series of one agent mostly share T, which then needs one check.
	known := len(w.series) > 0 && len(s.T) > 0 && len(w.series[len(w.series)-1].T) == len(s.T) && &w.series[len(w.series)-1].T[0] == &s.T[0]
	if w.isTabled(&s.ID) {
		w.again++
	} else if err := s.validateID(); err != nil {
		return err
	}
	if err := s.validateRows(known); err != nil {
		return err
	}
	w.series = append(w.series, s)
	return nil
}

// Finish encodes all series. Errors are *Error with BadSeries: no series, or one twice.
func (w *Writer) Finish() (*Files, error) {
	if w.err != nil {
		return nil, w.err
	}
	if len(w.series) == 0 {
		return nil, refuse(BadSeries, "no series")
	}
	if err := w.fillTables(); err != nil {
		return nil, err
	}
	w.begin()
	w.cut()
	for i, p := range w.parts {
		// Parts of different numbers do not share a block, so that a reader of the beginning of the hour
		// fetches no later rows.
		if i > 0 && p.number != w.parts[i-1].number {
			w.endValues()
		}
		w.part = w.series[p.series].Cut(p.from, p.to)
		w.addPart(p.series, w.times.share(&w.part))
	}
	w.endValues()
	w.tables.sortParts(&w.index)
	f := &Files{}
	for _, s := range w.series {
		f.count(&s.Columns)
	}
	w.finish(f)
	return f, nil
}

// fillTables brings the series into their order, and makes the tables of the index, if they are not those already.
func (w *Writer) fillTables() error {
	if n := len(w.series); n == w.again && n == len(w.tabled) {
		w.tables.reuse(&w.index, w.series)
		return nil
	}
	w.tabled = w.tabled[:0]
	for _, s := range w.series {
		w.tabled = append(w.tabled, s.ID)
	}
	err := w.tables.fill(&w.index, w.series)
	if err != nil {
		w.tabled = w.tabled[:0]
	}
	return err
}

// cut splits series into parts, in the order of the blocks: the first parts of all series,
// then the second ones.
func (w *Writer) cut() {
	w.parts = w.parts[:0]
	for i, s := range w.series {
		for from, k := 0, 0; from < len(s.T); from, k = from+w.opt.Rows, k+1 {
			w.parts = append(w.parts, pendingPart{series: i, from: from, to: min(from+w.opt.Rows, len(s.T)), number: k})
		}
	}
	slices.SortFunc(w.parts, func(a, b pendingPart) int {
		return cmp.Or(cmp.Compare(a.number, b.number), cmp.Compare(a.series, b.series))
	})
}

// Stream makes one chunk and its index of series that come in their order, and keeps of
// the values no more than a group of series: a Writer keeps them all. Files of a Stream
// differ from those of a Writer in the order of blocks only where series are split in
// time: all parts of a group stand together. Equal series give equal files.
type Stream struct {
	builder
	labels []*Series // of all series so far, without columns
	group  []*Series
	first  int // values of the group's first parts
	total  int // of the group
	f      Files
}

// groupValues bounds the values that a Stream keeps before it encodes them.
const groupValues = 4 << 20

// NewStream returns an empty Stream.
func NewStream(o Options) *Stream {
	s := &Stream{}
	s.init(o)
	s.Reset()
	return s
}

// Reset forgets everything.
func (s *Stream) Reset() {
	if s.codec == nil {
		return // Add and Finish say so
	}
	s.labels, s.group, s.first, s.total, s.f, s.err = s.labels[:0], s.group[:0], 0, 0, Files{}, nil
	s.tables.parts = s.tables.parts[:0]
	s.index.blocks, s.index.timeBlocks = s.index.blocks[:0], s.index.timeBlocks[:0]
	s.begin()
}

// Add takes the next series. It keeps the columns until it has a group of them, of which
// Bytes then has the size. Errors are *Error with BadSeries, or UnknownEncoding, for good.
func (s *Stream) Add(x *Series) error {
	if s.err != nil {
		return s.err
	}
	// The error stays: a chunk that lacks one of its series must not be finished.
	if s.err = x.validateID(); s.err != nil {
		return s.err
	}
	if s.err = x.validateRows(false); s.err != nil {
		return s.err
	}
	if n := len(s.labels); n > 0 && s.labels[n-1].ID.Compare(&x.ID) >= 0 {
		s.err = refuse(BadSeries, "%q of agent %q is out of order", x.Labels, x.Agent)
		return s.err
	}
	n, first := x.values(len(x.T)), x.values(min(len(x.T), s.opt.Rows))
	if len(s.group) > 0 && (len(s.group) >= s.opt.BlockSeries || s.first+first > s.opt.BlockValues || s.total+n > groupValues) {
		s.flush()
	}
	s.group = append(s.group, x)
	s.first += first
	s.total += n
	s.labels = append(s.labels, &Series{ID: x.ID})
	s.f.count(&x.Columns)
	return nil
}

// Bytes is the size of the chunk so far, without pending series, times and footer.
func (s *Stream) Bytes() int { return len(s.chunk) }

// TimeValues counts the times that are kept until the end.
func (s *Stream) TimeValues() int { return s.times.values }

// flush encodes the group: first parts of all series, then second ones, and so on.
func (s *Stream) flush() {
	first := len(s.labels) - len(s.group)
	for row, more := 0, true; more; row += s.opt.Rows {
		more = false
		for i, x := range s.group {
			if row >= len(x.T) {
				continue
			}
			to := min(row+s.opt.Rows, len(x.T))
			more = more || to < len(x.T)
			s.part = x.Cut(row, to)
			// Times are kept until the end of the chunk and the caller's columns are not, so times are
			// copied.
			s.addPart(first+i, s.times.copy(&s.part))
		}
		s.endValues()
	}
	clear(s.group)
	s.group, s.first, s.total = s.group[:0], 0, 0
}

// Finish ends the chunk. Its files are valid until the next Reset. Errors are *Error.
func (s *Stream) Finish() (*Files, error) {
	if s.err != nil {
		return nil, s.err
	}
	if len(s.labels) == 0 {
		return nil, refuse(BadSeries, "no series")
	}
	s.flush()
	// Filling the tables forgets blocks and parts, which are known here before the labels are.
	blocks, parts := slices.Clone(s.index.blocks), slices.Clone(s.tables.parts)
	order := slices.Clone(s.labels)
	if err := s.tables.fill(&s.index, s.labels); err != nil {
		return nil, err
	}
	// Add compares labels and fill compares ranks of symbols. If the two orders differed, parts would be
	// listed for other series.
	if !slices.Equal(order, s.labels) {
		return nil, refuse(BadSeries, "series are not in their order")
	}
	s.index.blocks, s.tables.parts = blocks, parts
	s.tables.sortParts(&s.index)
	s.finish(&s.f)
	return &s.f, nil
}
