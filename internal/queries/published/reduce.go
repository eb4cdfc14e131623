package published

import (
	"slices"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Hint says what the samples of a selector are used for. It matters for hours whose samples have expired: it
// decides which of the values of rolled rows stands in for them.
type Hint struct {
	// Func is the function or aggregation around the selector, empty for none.
	Func string
	// Range of the selector in milliseconds; 0 for an instant selector.
	Range int64
}

// reducedColumns are what samples are made of.
const reducedColumns = chunk.ColCount | chunk.ColFirstT | chunk.ColLastT | chunk.ColLast | chunk.ColSum | chunk.ColSumC |
	chunk.ColMin | chunk.ColMax | chunk.ColLastH | chunk.ColSumH

// everyMS is the distance of the samples that an instant selector gets within a bucket: the value stands for all
// of it, however short the lookback is.
const everyMS = 60_000

// widen extends [mint, maxt] to whole hours: a bucket may end after the times for which it stands.
func widen(mint, maxt int64) (int64, int64) {
	return timegrid.HourOf(mint).StartMS() + 1, timegrid.HourOf(maxt).EndMS()
}

// samples turns rolled rows into samples: for a counter the last value of the bucket, for others the mean, or what
// the function needs. Each is at the end of its bucket; for an instant selector there is also one at each minute
// between the first and the last sample of the bucket.
func (hint *Hint) samples(c *chunk.Columns, typ series.Type, res timegrid.Resolution) chunk.Columns {
	var out chunk.Columns
	value, hist := hint.values(c, typ)
	if value == nil && hist == nil {
		return out // the rows lack the columns
	}
	for i, end := range c.T {
		if c.Count[i] == 0 {
			continue // the bucket has only stale markers
		}
		from, to := end, end
		// A range function would count every copy; an instant selector needs a sample within its lookback.
		if hint.Range == 0 && res != timegrid.OneMinute {
			from, to = minuteAfter(c.FirstT[i]), minuteAfter(c.LastT[i])
		}
		for t := from; t <= to && t <= end; t += everyMS * nsPerMS {
			out.T = append(out.T, t)
			if hist != nil {
				out.H = append(out.H, hist(i))
			} else {
				out.V = append(out.V, value(i))
			}
		}
	}
	return out
}

// minuteAfter is the first whole minute at or after ns.
func minuteAfter(ns int64) int64 {
	return timegrid.OneMinute.BucketEnd(timegrid.Millisecond(ns)) * nsPerMS
}

// values returns what stands in for the samples of a bucket: a float, a histogram, or neither.
func (hint *Hint) values(c *chunk.Columns, typ series.Type) (value func(int) float64, hist func(int) series.Histogram) {
	column := func(v []float64) func(int) float64 { return func(i int) float64 { return v[i] } }
	mean := func(i int) float64 { return (c.Sum[i] + c.SumC[i]) / float64(c.Count[i]) }
	switch {
	// The order is from the most specific use to the general one: the first that the columns allow.
	case c.SumH != nil && hint.Func == "sum_over_time":
		return nil, func(i int) series.Histogram { return c.SumH[i] }
	case c.SumH != nil:
		return nil, func(i int) series.Histogram { return scaled(&c.SumH[i], 1/float64(c.Count[i])) }
	case c.LastH != nil:
		return nil, func(i int) series.Histogram { return c.LastH[i] }
	case c.Min != nil && (hint.Func == "min" || hint.Func == "min_over_time"):
		return column(c.Min), nil
	case c.Max != nil && (hint.Func == "max" || hint.Func == "max_over_time"):
		return column(c.Max), nil
	case c.Sum != nil && c.SumC != nil && hint.Func == "sum_over_time" && hint.Range > 0:
		return func(i int) float64 { return c.Sum[i] + c.SumC[i] }, nil
	case c.Last != nil && (typ == series.Counter || c.Sum == nil || hint.Func == "last_over_time"):
		return column(c.Last), nil
	case c.Sum != nil && c.SumC != nil:
		return mean, nil
	}
	return nil, nil
}

// scaled is a histogram of a fraction of the observations.
func scaled(h *series.Histogram, by float64) series.Histogram {
	times := func(v []float64) []float64 {
		v = slices.Clone(v)
		for i := range v {
			v[i] *= by
		}
		return v
	}
	s := *h
	s.Count, s.Sum, s.ZeroCount = h.Count*by, h.Sum*by, h.ZeroCount*by
	s.PositiveBuckets, s.NegativeBuckets = times(h.PositiveBuckets), times(h.NegativeBuckets)
	return s
}
