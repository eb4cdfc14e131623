package resolution

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Difference is one record that the two frames of a conflict do not share.
type Difference struct {
	// Series as labels, with its metric name.
	Series string
	// Time in Unix nanoseconds.
	Time int64
	// AcceptedSeq and SubmittedSeq are the record's numbers; 0 where the frame does not have it.
	AcceptedSeq, SubmittedSeq uint64
	// Accepted and Submitted are the values; "" where the frame does not have the record.
	Accepted, Submitted string
}

// Comparison is what two frames share. Records are matched by series and time, since one that is
// missing moves the numbers of all behind it.
type Comparison struct {
	Same, Different, OnlyAccepted, OnlySubmitted uint64
	// Differences are the first ones.
	Differences []Difference
}

type recordKey struct {
	series string
	time   int64
}

type place struct {
	group, at int
	seq       uint64
}

// Compare matches the records of two frames, and lists at most limit differences.
func Compare(accepted, submitted *frame.Batch, limit int) Comparison {
	var c Comparison
	there := make(map[recordKey]place, submitted.Records())
	walk(submitted, func(k recordKey, p place) { there[k] = p })
	note := func(d Difference) {
		if len(c.Differences) < limit {
			c.Differences = append(c.Differences, d)
		}
	}
	walk(accepted, func(k recordKey, p place) {
		q, ok := there[k]
		if !ok {
			c.OnlyAccepted++
			note(Difference{Series: k.series, Time: k.time, AcceptedSeq: p.seq, Accepted: text(accepted, p)})
			return
		}
		delete(there, k)
		if equal(accepted, p, submitted, q) {
			c.Same++
			return
		}
		c.Different++
		note(Difference{Series: k.series, Time: k.time, AcceptedSeq: p.seq, SubmittedSeq: q.seq, Accepted: text(accepted, p), Submitted: text(submitted, q)})
	})
	// In the order of the frame, which that of the map is not.
	walk(submitted, func(k recordKey, p place) {
		if q, ok := there[k]; ok && q == p {
			c.OnlySubmitted++
			note(Difference{Series: k.series, Time: k.time, SubmittedSeq: p.seq, Submitted: text(submitted, p)})
		}
	})
	return c
}

// Numbered is what a frame has under a sequence number.
type Numbered struct {
	// Series as labels, with its metric name.
	Series string
	// Time in Unix nanoseconds.
	Time  int64
	Value string
}

// NumberDifference is a sequence number under which two frames have different records.
type NumberDifference struct {
	Seq           uint64
	Counts, Other Numbered
}

// NumberComparison is what two frames have under the numbers that both cover.
type NumberComparison struct {
	Same, Different uint64
	// Differences are the first ones.
	Differences []NumberDifference
}

// CompareNumbers compares what two frames of one boot have under the numbers that both cover, and lists at most limit
// differences. Unlike Compare it matches by number: the number decides which of both records counts.
func CompareNumbers(counts, other *frame.Batch, limit int) NumberComparison {
	var c NumberComparison
	first, last := max(counts.Identity.SeqStart, other.Identity.SeqStart), min(counts.Identity.SeqEnd, other.Identity.SeqEnd)
	if last < first {
		return c
	}
	type numbered struct {
		recordKey
		place
	}
	shared := make([]numbered, 0, last-first+1)
	walk(counts, func(k recordKey, p place) {
		if first <= p.seq && p.seq <= last {
			shared = append(shared, numbered{k, p})
		}
	})
	walk(other, func(k recordKey, q place) {
		if q.seq < first || last < q.seq || q.seq-first >= uint64(len(shared)) {
			return
		}
		n := shared[q.seq-first]
		if n.recordKey == k && equal(counts, n.place, other, q) {
			c.Same++
			return
		}
		c.Different++
		if len(c.Differences) < limit {
			c.Differences = append(c.Differences, NumberDifference{q.seq, Numbered{n.series, n.time, text(counts, n.place)}, Numbered{k.series, k.time, text(other, q)}})
		}
	})
	return c
}

// walk calls fn with every record, in order.
func walk(b *frame.Batch, fn func(recordKey, place)) {
	seq := b.Identity.SeqStart
	for g := range b.Groups {
		rows := b.Groups[g].Timestamps
		for s := range b.Groups[g].Series {
			name := seriesText(b, &b.Groups[g].Series[s])
			for row, t := range rows {
				fn(recordKey{name, t}, place{g, s*len(rows) + row, seq})
				seq++
			}
		}
	}
}

func seriesText(b *frame.Batch, ref *series.Ref) string {
	var out strings.Builder
	name := ""
	sep := "{"
	for k, v := range b.Labels(ref) {
		if k == "__name__" {
			name = v
			continue
		}
		out.WriteString(sep + k + "=" + strconv.Quote(v))
		sep = ","
	}
	if sep == "," {
		out.WriteByte('}')
	}
	return name + out.String()
}

func equal(a *frame.Batch, p place, b *frame.Batch, q place) bool {
	g, h := &a.Groups[p.group], &b.Groups[q.group]
	if len(g.Histograms) > 0 && len(h.Histograms) > 0 {
		return reflect.DeepEqual(normal(g.Histograms[p.at]), normal(h.Histograms[q.at]))
	}
	if len(g.Histograms) > 0 || len(h.Histograms) > 0 {
		return false
	}
	return math.Float64bits(g.Values[p.at]) == math.Float64bits(h.Values[q.at])
}

// normal makes empty slices nil, which a decoder may or may not.
func normal(h series.Histogram) series.Histogram {
	for _, s := range []*[]float64{&h.PositiveBuckets, &h.NegativeBuckets, &h.CustomValues} {
		if len(*s) == 0 {
			*s = nil
		}
	}
	for _, s := range []*[]int32{&h.PositiveSpans, &h.NegativeSpans} {
		if len(*s) == 0 {
			*s = nil
		}
	}
	return h
}

func text(b *frame.Batch, p place) string {
	g := &b.Groups[p.group]
	if len(g.Histograms) > 0 {
		h := &g.Histograms[p.at]
		return fmt.Sprintf("histogram count=%s sum=%s", number(h.Count), number(h.Sum))
	}
	return number(g.Values[p.at])
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
