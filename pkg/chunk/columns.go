package chunk

import "lightmetrics.dev/lightmetrics/pkg/frame"

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

func (c *Columns) hist(bit Mask) *[]frame.Histogram {
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
