package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/prometheus/prometheus/model/histogram"

	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// Bounds of a chunk.
const (
	// floatsInChunk and histogramsInChunk are how many samples the writer puts into one.
	floatsInChunk, histogramsInChunk = 1024, 64
	// maxInChunk bounds what a reader takes, so that a decoded chunk stays small.
	maxInChunk = 4096
	// maxBuckets bounds the buckets of one histogram, and its spans.
	maxBuckets = 1 << 16
)

// Flags of a chunk.
const (
	hasFloats     = 1 << iota // all samples are floats, unless hasHistograms is set, too
	hasHistograms             // all samples are histograms, unless hasFloats is set, too
	hasStart                  // one start time for all
	hasStarts                 // one for each
	allFlags      = hasFloats | hasHistograms | hasStart | hasStarts
)

// BadError: bytes that no encoder of this version writes.
type BadError struct{ Detail string }

func (e *BadError) Error() string { return "bad series of a region: " + e.Detail }

func bad(format string, args ...any) error { return &BadError{fmt.Sprintf(format, args...)} }

// Bad makes a *BadError of what is around series.
func Bad(format string, args ...any) error { return bad(format, args...) }

// columns are decoded samples. Their memory is used again.
type columns struct {
	t     []int64
	v     []float64
	h     []*histogram.FloatHistogram // nil or as long as t
	st    int64
	sts   []int64 // nil or as long as t
	kinds []byte
}

// appendChunk encodes samples [i, j) of a run: at most maxInChunk.
func appendChunk(b []byte, run *samples.Run, i, j int) []byte {
	flags := byte(0)
	for k := i; k < j; k++ {
		if run.H != nil && run.H[k] != nil {
			flags |= hasHistograms
		} else {
			flags |= hasFloats
		}
	}
	switch {
	case run.STs != nil:
		flags |= hasStarts
	case run.ST != 0:
		flags |= hasStart
	}
	b = append(b, flags)
	if flags&(hasFloats|hasHistograms) == hasFloats|hasHistograms {
		for k := i; k < j; k++ {
			kind := byte(0)
			if run.H[k] != nil {
				kind = 1
			}
			b = append(b, kind)
		}
	}
	b = appendTimes(b, run.T[i:j])
	switch {
	case flags&hasStart != 0:
		b = binary.AppendVarint(b, run.ST)
	case flags&hasStarts != 0:
		before := int64(0)
		for _, st := range run.STs[i:j] {
			b = binary.AppendVarint(b, st-before) // a difference that overflows is undone by the reader's
			before = st
		}
	}
	last := uint64(0)
	var prev *histogram.FloatHistogram
	for k := i; k < j; k++ {
		if run.H != nil && run.H[k] != nil {
			h := evaluable(run.H[k])
			b, prev = appendHistogram(b, h, prev), h
			continue
		}
		x := math.Float64bits(run.V[k])
		b, last = appendBits(b, x^last), x
	}
	return b
}

// appendTimes writes ascending times: the first, the first difference, and then how differences differ.
func appendTimes(b []byte, t []int64) []byte {
	b = binary.AppendVarint(b, t[0])
	delta := int64(0)
	for k := 1; k < len(t); k++ {
		d := t[k] - t[k-1]
		b = binary.AppendVarint(b, d-delta)
		delta = d
	}
	return b
}

// appendBits writes the bytes of x between its zero bytes: how many zero bytes stand at its low end and how many
// follow, four bits each, then those. Consecutive values of a counter differ in the middle of their bits.
func appendBits(b []byte, x uint64) []byte {
	if x == 0 {
		return append(b, 0)
	}
	low := bits.TrailingZeros64(x) / 8
	n := (bits.Len64(x)+7)/8 - low
	b = append(b, byte(low<<4|n))
	for x >>= 8 * low; n > 0; n-- {
		b = append(b, byte(x))
		x >>= 8
	}
	return b
}

func appendFloat(b []byte, v, before float64) []byte {
	return appendBits(b, math.Float64bits(v)^math.Float64bits(before))
}

// input reads bytes; after an error it gives zeros.
type input struct {
	b   []byte
	err error
}

var errShort = errors.New("it ends early, or a number is too long")

func (in *input) fail(err error) {
	if in.err == nil {
		in.err = err
	}
	in.b = nil
}

func (in *input) byte() byte {
	if len(in.b) == 0 {
		in.fail(errShort)
		return 0
	}
	x := in.b[0]
	in.b = in.b[1:]
	return x
}

func (in *input) uvarint() uint64 {
	x, n := binary.Uvarint(in.b)
	if n <= 0 {
		in.fail(errShort)
		return 0
	}
	in.b = in.b[n:]
	return x
}

func (in *input) varint() int64 {
	x, n := binary.Varint(in.b)
	if n <= 0 {
		in.fail(errShort)
		return 0
	}
	in.b = in.b[n:]
	return x
}

// count reads a number of things of which each takes a byte at least, so that memory for them is bounded by the input.
func (in *input) count(most int) int {
	x := in.uvarint()
	if x > uint64(most) || x > uint64(len(in.b)) {
		in.fail(fmt.Errorf("%d of something, more than fit", x))
		return 0
	}
	return int(x)
}

func (in *input) take(n int) []byte {
	if n < 0 || n > len(in.b) {
		in.fail(errShort)
		return nil
	}
	x := in.b[:n:n]
	in.b = in.b[n:]
	return x
}

func (in *input) bits() uint64 {
	head := in.byte()
	low, n := int(head>>4), int(head&15)
	if low+n > 8 || n == 0 && low != 0 {
		in.fail(fmt.Errorf("%d bytes of a float behind %d", n, low))
		return 0
	}
	x := uint64(0)
	for i, c := range in.take(n) {
		x |= uint64(c) << (8 * (low + i))
	}
	return x
}

func (in *input) float(before float64) float64 {
	return math.Float64frombits(in.bits() ^ math.Float64bits(before))
}

// decode reads a chunk of n samples. Histograms of a decoded chunk are new ones, as their readers keep them.
func (c *columns) decode(data []byte, n int) error {
	if n < 1 || n > maxInChunk {
		return bad("a chunk of %d samples", n)
	}
	in := input{b: data}
	flags := in.byte()
	if flags&^allFlags != 0 || flags&(hasFloats|hasHistograms) == 0 || flags&hasStart != 0 && flags&hasStarts != 0 {
		return bad("flags %x of a chunk", flags)
	}
	c.kinds = c.kinds[:0]
	mixed := flags&(hasFloats|hasHistograms) == hasFloats|hasHistograms
	if mixed {
		c.kinds = append(c.kinds, in.take(n)...)
		if in.err != nil {
			return bad("kinds: %v", in.err)
		}
	}
	if err := c.times(&in, n); err != nil {
		return err
	}
	c.st, c.sts = 0, c.sts[:0]
	switch {
	case flags&hasStart != 0:
		c.st = in.varint()
	case flags&hasStarts != 0:
		st := int64(0)
		for range n {
			st += in.varint()
			c.sts = append(c.sts, st)
		}
	}
	c.v, c.h = c.v[:0], c.h[:0]
	last := uint64(0)
	var prev *histogram.FloatHistogram
	for i := range n {
		histo := flags&hasFloats == 0
		if mixed {
			if c.kinds[i] > 1 {
				return bad("kind %d of a sample", c.kinds[i])
			}
			histo = c.kinds[i] == 1
		}
		if !histo {
			last ^= in.bits()
			c.v = append(c.v, math.Float64frombits(last))
			if flags&hasHistograms != 0 {
				c.h = append(c.h, nil)
			}
		} else {
			h, err := in.histogram(prev)
			if err != nil {
				return err
			}
			c.v, c.h, prev = append(c.v, 0), append(c.h, h), h
		}
		if in.err != nil {
			return bad("sample %d of %d: %v", i, n, in.err)
		}
	}
	if len(in.b) > 0 {
		return bad("%d bytes behind a chunk", len(in.b))
	}
	return nil
}

// times reads n times and wants them to ascend.
func (c *columns) times(in *input, n int) error {
	// Each takes a byte at least.
	if n > len(in.b) {
		return bad("%d samples in %d bytes", n, len(in.b))
	}
	c.t = c.t[:0]
	t, delta := in.varint(), int64(0)
	c.t = append(c.t, t)
	for range n - 1 {
		delta += in.varint()
		next := t + delta
		if delta <= 0 || next < t {
			return bad("times that do not ascend")
		}
		c.t, t = append(c.t, next), next
	}
	if in.err != nil {
		return bad("times: %v", in.err)
	}
	return nil
}
