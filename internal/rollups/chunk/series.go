// Package chunk is the format of published series: chunks (.lmrollup.zst) and their
// indexes (.lmindex.zst), byte-exact by docs/format/chunk.md.
//
// A Writer or a Stream makes a chunk and its index; an Index says where series are, and a
// Decoder reads them. A chunk consists of blocks. Each names its encoding, so that one chunk
// may use several codecs: see codec.go. The files integer_*.go are the first one.
package chunk

import (
	"slices"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Series is one label set of one agent, with its rows in one hour and resolution. Equal
// labels of two agents, or with two types or units, are two series.
type Series struct {
	series.ID
	Columns
}

// Columns are the rows of a series. A column is nil when the series does not have it;
// all others have as many entries as T.
//
// Raw series have V or H. Rolled ones have Count, Stale, FirstT and LastT, and by type:
// counters First, Last and Increase; gauges and all other floats First, Last, Sum, Min
// and Max; histograms FirstH and LastH, cumulative ones IncreaseH too, others SumH.
type Columns struct {
	// T ascends strictly, Unix nanoseconds: raw, the time of the sample; rolled, the end
	// of the bucket.
	T []int64

	V []float64
	H []series.Histogram
	// Start of the accumulation of each raw row, Unix nanoseconds, 0 when unknown; nil
	// when all are unknown.
	Start []int64

	// Count of the samples of the bucket, stale markers left out. Where it is 0 the
	// other columns of the row are 0.
	Count []uint32
	// Stale markers of the bucket.
	Stale []uint32
	// FirstT and LastT are the times of the first and last sample, Unix nanoseconds.
	FirstT, LastT []int64
	First, Last   []float64
	// Increase from First to Last with resets corrected as PromQL does.
	Increase []float64
	// Sum of the values; SumC is the compensation of its Kahan-Neumaier summation.
	Sum, SumC []float64
	Min, Max  []float64

	FirstH, LastH   []series.Histogram
	IncreaseH, SumH []series.Histogram
}

// Rows of the series.
func (c *Columns) Rows() int { return len(c.T) }

// nameLabel holds the metric's name.
const nameLabel = series.MetricName

// validateID checks the labels, and the lengths of agent and unit.
func (s *Series) validateID() error {
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
	return nil
}

// validateRows checks the columns; ascends says that T is known to ascend.
func (s *Series) validateRows(ascends bool) error {
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
func validateHistograms(v []series.Histogram) error {
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

// Mask is a set of columns of a series.
type Mask uint32

// Columns of a block, in their order there.
const (
	ColV Mask = 1 << iota
	ColH
	ColStart
	ColCount
	ColStale
	ColFirst
	ColLast
	ColIncrease
	ColSum
	ColSumC
	ColMin
	ColMax
	ColFirstH
	ColLastH
	ColIncreaseH
	ColSumH
	// ColFirstT and ColLastT stand beside T, outside the series' block.
	ColFirstT
	ColLastT

	columns = 16
	// AllColumns asks for whatever is there.
	AllColumns Mask = 1<<18 - 1

	// HistogramColumns are those of histograms.
	HistogramColumns = histColumns

	histColumns  = ColH | ColFirstH | ColLastH | ColIncreaseH | ColSumH
	countColumns = ColCount | ColStale
	timeColumns  = ColFirstT | ColLastT
)

// mask says which columns c has.
func (c *Columns) mask() Mask {
	var m Mask
	set := func(has bool, bit Mask) {
		if has {
			m |= bit
		}
	}
	set(c.V != nil, ColV)
	set(c.H != nil, ColH)
	set(c.Start != nil, ColStart)
	set(c.Count != nil, ColCount)
	set(c.Stale != nil, ColStale)
	set(c.First != nil, ColFirst)
	set(c.Last != nil, ColLast)
	set(c.Increase != nil, ColIncrease)
	set(c.Sum != nil, ColSum)
	set(c.SumC != nil, ColSumC)
	set(c.Min != nil, ColMin)
	set(c.Max != nil, ColMax)
	set(c.FirstH != nil, ColFirstH)
	set(c.LastH != nil, ColLastH)
	set(c.IncreaseH != nil, ColIncreaseH)
	set(c.SumH != nil, ColSumH)
	set(c.FirstT != nil, ColFirstT)
	set(c.LastT != nil, ColLastT)
	return m
}

func (c *Columns) float(bit Mask) *[]float64 {
	switch bit {
	case ColV:
		return &c.V
	case ColFirst:
		return &c.First
	case ColLast:
		return &c.Last
	case ColIncrease:
		return &c.Increase
	case ColSum:
		return &c.Sum
	case ColSumC:
		return &c.SumC
	case ColMin:
		return &c.Min
	}
	return &c.Max
}

func (c *Columns) hist(bit Mask) *[]series.Histogram {
	switch bit {
	case ColH:
		return &c.H
	case ColFirstH:
		return &c.FirstH
	case ColLastH:
		return &c.LastH
	case ColIncreaseH:
		return &c.IncreaseH
	}
	return &c.SumH
}

func (c *Columns) count(bit Mask) *[]uint32 {
	if bit == ColCount {
		return &c.Count
	}
	return &c.Stale
}

// length of the column, which c has.
func (c *Columns) length(bit Mask) int {
	switch {
	case bit == ColFirstT:
		return len(c.FirstT)
	case bit == ColLastT:
		return len(c.LastT)
	case bit == ColStart:
		return len(c.Start)
	case bit&histColumns != 0:
		return len(*c.hist(bit))
	case bit&countColumns != 0:
		return len(*c.count(bit))
	}
	return len(*c.float(bit))
}

// Cut leaves the rows [from, to); it shares the memory.
func (c *Columns) Cut(from, to int) Columns {
	if from == 0 && to == len(c.T) {
		return *c
	}
	out := Columns{T: c.T[from:to]}
	cut(&out.Start, c.Start, from, to)
	cut(&out.FirstT, c.FirstT, from, to)
	cut(&out.LastT, c.LastT, from, to)
	for i := range columns {
		bit := Mask(1) << i
		switch {
		case bit == ColStart:
		case bit&histColumns != 0:
			cut(out.hist(bit), *c.hist(bit), from, to)
		case bit&countColumns != 0:
			cut(out.count(bit), *c.count(bit), from, to)
		default:
			cut(out.float(bit), *c.float(bit), from, to)
		}
	}
	return out
}

func cut[T any](dst *[]T, src []T, from, to int) {
	if src != nil {
		*dst = src[from:to]
	}
}

// Clone copies the columns; histograms share their buckets.
func (c *Columns) Clone() *Columns {
	out := &Columns{T: slices.Clone(c.T), Start: slices.Clone(c.Start), FirstT: slices.Clone(c.FirstT), LastT: slices.Clone(c.LastT)}
	for i := range columns {
		bit := Mask(1) << i
		switch {
		case bit == ColStart:
		case bit&histColumns != 0:
			*out.hist(bit) = slices.Clone(*c.hist(bit))
		case bit&countColumns != 0:
			*out.count(bit) = slices.Clone(*c.count(bit))
		default:
			*out.float(bit) = slices.Clone(*c.float(bit))
		}
	}
	return out
}

// Has reports that one of the columns is there.
func (c *Columns) Has(m Mask) bool { return c.mask()&m != 0 }

// Columns is the number of columns, T included.
func (c *Columns) Columns() int { return 1 + c.mask().count() }

// AppendRows adds rows [from, to) of o, which are later. Starts that one of them does not
// have are unknown. It shares the histograms of o. Errors are *Error with BadSeries: other
// columns differ.
func (c *Columns) AppendRows(o *Columns, from, to int) error {
	part := o.Cut(from, to)
	if len(c.T) == 0 {
		// Empty columns that are not nil say which columns the series has.
		*c = Columns{}
		for i := range columns {
			bit := Mask(1) << i
			switch {
			case part.mask()&bit == 0 || bit == ColStart:
			case bit&histColumns != 0:
				*c.hist(bit) = []series.Histogram{}
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
	// Start may be there or not: rows without it have an unknown start, which is 0.
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

// append adds rows of the next part, which has the same columns.
func (c *Columns) append(o *Columns) error {
	if c.mask() != o.mask() {
		return refuse(BadBlock, "parts of a series with columns %#x and %#x", c.mask(), o.mask())
	}
	c.T = append(c.T, o.T...)
	c.Start = append(c.Start, o.Start...)
	c.FirstT = append(c.FirstT, o.FirstT...)
	c.LastT = append(c.LastT, o.LastT...)
	for i := range columns {
		bit := Mask(1) << i
		switch {
		case bit == ColStart:
		case bit&histColumns != 0:
			*c.hist(bit) = append(*c.hist(bit), *o.hist(bit)...)
		case bit&countColumns != 0:
			*c.count(bit) = append(*c.count(bit), *o.count(bit)...)
		default:
			*c.float(bit) = append(*c.float(bit), *o.float(bit)...)
		}
	}
	return nil
}

// histogramValues is how many values a histogram counts for in the size of a block.
const histogramValues = 32

// values counts what a number of rows of c add to a block.
func (c *Columns) values(rows int) int {
	m := c.mask() &^ timeColumns
	return (m.count() + (histogramValues-1)*(m&histColumns).count()) * rows
}
