package foreign

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// Version of the encoding. Nodes of different versions do not read each other's series.
const Version = 1

// Records of a block.
const (
	recordSeries = 1
	recordChunk  = 2
)

const (
	// blockBytes is how long a block gets before it is handed on.
	blockBytes = 256 << 10
	// MaxBlockBytes bounds a block that is read: one chunk of large histograms may make it longer than blockBytes.
	MaxBlockBytes = 3 << 20
	// bucketsInChunk is how many buckets of histograms a chunk has, unless a single one has more.
	bucketsInChunk = 1 << 14
	// maxTexts bounds the table of texts that labels refer to; further ones are written each time.
	maxTexts = 1 << 16
	// maxLabels and maxText bound what a reader takes.
	maxLabels = 1 << 10
	maxText   = 1 << 20
)

// Writer encodes series in blocks. Begin a series with Series, then give its runs.
type Writer struct {
	// Emit takes a block that is full; it owns the bytes.
	Emit func(block []byte) error

	b     []byte
	texts map[string]uint64
	// Counts of what was written.
	NSeries, NSamples, NBytes uint64
}

// Restart forgets everything that was written.
func (w *Writer) Restart() {
	*w = Writer{Emit: w.Emit}
}

// Series begins the next series; they must come sorted by their labels.
func (w *Writer) Series(ls labels.Labels, agents agentlabel.Seen) error {
	if err := w.full(); err != nil {
		return err
	}
	w.NSeries++
	w.b = append(w.b, recordSeries)
	w.b = binary.AppendUvarint(w.b, uint64(ls.Len()))
	ls.Range(func(l labels.Label) {
		w.text(l.Name)
		w.text(l.Value)
	})
	n := uint64(0)
	for _, a := range []string{agents.One, agents.Other} {
		if a != "" {
			n++
		}
	}
	w.b = binary.AppendUvarint(w.b, n)
	for _, a := range []string{agents.One, agents.Other} {
		if a != "" {
			w.text(a)
		}
	}
	return nil
}

// text writes a text: its number in the table and 1, or 0 and the text.
func (w *Writer) text(s string) {
	if k, ok := w.texts[s]; ok {
		w.b = binary.AppendUvarint(w.b, k)
		return
	}
	w.b = append(binary.AppendUvarint(append(w.b, 0), uint64(len(s))), s...)
	if len(w.texts) < maxTexts {
		if w.texts == nil {
			w.texts = map[string]uint64{}
		}
		w.texts[s] = uint64(len(w.texts)) + 1
	}
}

// Run appends samples of the series.
func (w *Writer) Run(run *samples.Run) error {
	for i, j := 0, 0; i < len(run.T); i = j {
		if err := w.full(); err != nil {
			return err
		}
		j = chunkEnd(run, i)
		w.b = append(w.b, recordChunk)
		w.b = binary.AppendUvarint(w.b, uint64(j-i))
		// The length stands before the bytes, and is known after them: it is put behind them, and then both change places.
		at := len(w.b)
		w.b = appendChunk(w.b, run, i, j)
		var head [binary.MaxVarintLen64]byte
		n := binary.PutUvarint(head[:], uint64(len(w.b)-at))
		w.b = append(w.b, head[:n]...)
		copy(w.b[at+n:], w.b[at:len(w.b)-n])
		copy(w.b[at:], head[:n])
		w.NSamples += uint64(j - i)
	}
	return nil
}

// chunkEnd is where a chunk ends that begins at i: histograms may be large.
func chunkEnd(run *samples.Run, i int) int {
	if run.H == nil {
		return min(i+floatsInChunk, len(run.T))
	}
	j, buckets := i, 0
	for j < len(run.T) && j < i+histogramsInChunk {
		if h := run.H[j]; h != nil {
			buckets += len(h.PositiveBuckets) + len(h.NegativeBuckets) + len(h.CustomValues)
		}
		if j > i && buckets > bucketsInChunk {
			break
		}
		j++
	}
	return j
}

// full hands a block on that is long enough.
func (w *Writer) full() error {
	if len(w.b) < blockBytes {
		return nil
	}
	return w.Flush()
}

// Flush hands on what is left. An empty block is not handed on.
func (w *Writer) Flush() error {
	if len(w.b) == 0 {
		return nil
	}
	b := w.b
	w.NBytes += uint64(len(b))
	w.b = nil
	return w.Emit(b)
}

// ExceededError: more came than Limits allow.
type ExceededError struct{ What string }

func (e *ExceededError) Error() string {
	return "a region sent more " + e.What + " than the query may take"
}

// Limits of a Reader; what is used of them is counted in place.
type Limits struct{ Series, Samples, Bytes int64 }

// Reader checks blocks as they arrive, and keeps their series.
type Reader struct {
	// Mint and Maxt bound the times, milliseconds.
	Mint, Maxt int64
	// Reserve is called with the memory of what is kept before it is; nil reserves nothing.
	Reserve func(bytes int64) error

	series  []Series
	texts   []string
	builder labels.ScratchBuilder
	cols    columns
}

// Series that were read. The Reader must not be used afterwards.
func (r *Reader) Series() []Series { return r.series }

// Restart drops what was read.
func (r *Reader) Restart() { r.series, r.texts = nil, nil }

// memory of a series without its labels, and of a chunk without its bytes.
const seriesMemory, chunkMemory = 96, 48

// Block takes a block, whose bytes it keeps. Errors: *BadError, *ExceededError, that of Reserve.
func (r *Reader) Block(b []byte, left *Limits) error {
	if len(b) > MaxBlockBytes {
		return bad("a block of %d bytes", len(b))
	}
	if left.Bytes -= int64(len(b)); left.Bytes < 0 {
		return &ExceededError{"bytes"}
	}
	memory := int64(len(b))
	in := input{b: b}
	for len(in.b) > 0 {
		switch tag := in.byte(); tag {
		case recordSeries:
			if left.Series--; left.Series < 0 {
				return &ExceededError{"series"}
			}
			if err := r.begin(&in); err != nil {
				return err
			}
			memory += seriesMemory + int64(r.series[len(r.series)-1].Labels.ByteSize())
		case recordChunk:
			if err := r.chunk(&in, left); err != nil {
				return err
			}
			memory += chunkMemory
		default:
			return bad("a record %d", tag)
		}
	}
	if r.Reserve == nil {
		return nil
	}
	return r.Reserve(memory)
}

func (r *Reader) text(in *input) string {
	k := in.uvarint()
	switch {
	case k > 0 && k <= uint64(len(r.texts)):
		return r.texts[k-1]
	case k > 0:
		in.fail(fmt.Errorf("text %d of %d", k, len(r.texts)))
		return ""
	}
	s := string(in.take(in.count(maxText)))
	if len(r.texts) < maxTexts {
		r.texts = append(r.texts, s)
	}
	return s
}

func (r *Reader) begin(in *input) error {
	n := in.count(maxLabels)
	r.builder.Reset()
	before := ""
	for i := range n {
		name, value := r.text(in), r.text(in)
		if in.err == nil && (name == "" || value == "" || i > 0 && name <= before) {
			return bad("labels that are not sorted, or empty")
		}
		r.builder.Add(name, value)
		before = name
	}
	s := Series{}
	agents := in.count(2)
	for range agents {
		s.Agents.Add(r.text(in))
	}
	if in.err != nil {
		return bad("labels: %v", in.err)
	}
	s.Labels = r.builder.Labels()
	if k := len(r.series); k > 0 && labels.Compare(r.series[k-1].Labels, s.Labels) >= 0 {
		return bad("series that are not sorted")
	}
	r.series = append(r.series, s)
	return nil
}

func (r *Reader) chunk(in *input, left *Limits) error {
	n := in.uvarint()
	if n > maxInChunk {
		return bad("a chunk of %d samples", n)
	}
	data := in.take(in.count(MaxBlockBytes))
	if in.err != nil {
		return bad("a chunk: %v", in.err)
	}
	if len(r.series) == 0 {
		return bad("a chunk before the first series")
	}
	if left.Samples -= int64(n); left.Samples < 0 {
		return &ExceededError{"samples"}
	}
	if err := r.cols.decode(data, int(n)); err != nil {
		return err
	}
	c := chunk{mint: r.cols.t[0], maxt: r.cols.t[n-1], n: int32(n), data: data}
	s := &r.series[len(r.series)-1]
	before := int64(math.MinInt64)
	if k := len(s.chunks); k > 0 {
		before = s.chunks[k-1].maxt
	}
	if len(s.chunks) > 0 && c.mint <= before {
		return bad("chunks that do not ascend")
	}
	if c.mint < r.Mint || c.maxt > r.Maxt {
		return bad("samples at times that were not asked for")
	}
	s.chunks, s.n = append(s.chunks, c), s.n+int(n)
	return nil
}
