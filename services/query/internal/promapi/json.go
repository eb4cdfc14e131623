package promapi

import (
	"errors"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// Values are written by hand: the format is Prometheus', and answers can have millions of points.

const hex = "0123456789abcdef"

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	plain := 0 // bytes that are written as they are
	for plain < len(s) && s[plain] >= 0x20 && s[plain] < utf8.RuneSelf && s[plain] != '"' && s[plain] != '\\' {
		plain++
	}
	b = append(b, s[:plain]...)
	for i := plain; i < len(s); {
		// By byte where possible: most text is ASCII, and decoding runes is several times slower.
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c == '\n':
			b = append(b, '\\', 'n')
		case c == '\t':
			b = append(b, '\\', 't')
		case c < 0x20:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r) // U+FFFD for what is no UTF-8
			i += n
			continue
		}
		i++
	}
	return append(b, '"')
}

func appendTime(b []byte, ms int64) []byte {
	if ms < 0 {
		b = append(b, '-')
		ms = -ms
	}
	b = strconv.AppendInt(b, ms/1000, 10)
	if f := ms % 1000; f != 0 {
		b = append(b, '.', byte('0'+f/100), byte('0'+f/10%10), byte('0'+f%10))
	}
	return b
}

// wholeFloats is below what a float has every integer of.
const wholeFloats = 1 << 53

func appendFloat(b []byte, v float64) []byte {
	b = append(b, '"')
	// Many values are whole, and digits of an integer are found faster. 0 may have a sign.
	if v > -wholeFloats && v < wholeFloats && v != 0 && v == math.Trunc(v) {
		return append(strconv.AppendInt(b, int64(v), 10), '"')
	}
	format := byte('f')
	if abs := math.Abs(v); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	return append(strconv.AppendFloat(b, v, format, -1, 64), '"')
}

func appendPoint(b []byte, t int64, v float64) []byte {
	b = appendTime(append(b, '['), t)
	return append(appendFloat(append(b, ','), v), ']')
}

func appendHistogramPoint(b []byte, t int64, h *histogram.FloatHistogram) []byte {
	b = appendTime(append(b, '['), t)
	return append(appendHistogram(append(b, ','), h), ']')
}

// appendHistogram writes count, sum and the buckets that are not empty, each as
// [boundaries, lower, upper, count]; boundaries say which side is closed: 0 upper, 1 lower, 2 none, 3 both.
func appendHistogram(b []byte, h *histogram.FloatHistogram) []byte {
	b = appendFloat(append(b, `{"count":`...), h.Count)
	b = appendFloat(append(b, `,"sum":`...), h.Sum)
	first := true
	for it := h.AllBucketIterator(); it.Next(); {
		k := it.At()
		if k.Count == 0 {
			continue
		}
		if first {
			b = append(b, `,"buckets":[`...)
		} else {
			b = append(b, ',')
		}
		first = false
		boundaries := byte('2')
		switch {
		case k.LowerInclusive && k.UpperInclusive:
			boundaries = '3'
		case k.LowerInclusive:
			boundaries = '1'
		case k.UpperInclusive:
			boundaries = '0'
		}
		b = append(b, '[', boundaries, ',')
		b = appendFloat(b, k.Lower)
		b = appendFloat(append(b, ','), k.Upper)
		b = appendFloat(append(b, ','), k.Count)
		b = append(b, ']')
	}
	if !first {
		b = append(b, ']')
	}
	return append(b, '}')
}

func appendLabels(b []byte, ls labels.Labels) []byte {
	b = append(b, '{')
	first := true
	ls.Range(func(l labels.Label) {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendString(b, l.Name)
		b = appendString(append(b, ':'), l.Value)
	})
	return append(b, '}')
}

func appendSample(b []byte, s promql.Sample) []byte {
	b = appendLabels(append(b, `{"metric":`...), s.Metric)
	if s.H != nil {
		b = appendHistogramPoint(append(b, `,"histogram":`...), s.T, s.H)
	} else {
		b = appendPoint(append(b, `,"value":`...), s.T, s.F)
	}
	return append(b, '}')
}

func appendSeries(b []byte, s promql.Series) []byte {
	b = appendLabels(append(b, `{"metric":`...), s.Metric)
	for i, p := range s.Floats {
		if i == 0 {
			b = append(b, `,"values":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendPoint(b, p.T, p.F)
	}
	if len(s.Floats) > 0 {
		b = append(b, ']')
	}
	for i, p := range s.Histograms {
		if i == 0 {
			b = append(b, `,"histograms":[`...)
		} else {
			b = append(b, ',')
		}
		b = appendHistogramPoint(b, p.T, p.H)
	}
	if len(s.Histograms) > 0 {
		b = append(b, ']')
	}
	return append(b, '}')
}

// value writes the result of an expression. check is asked between elements: a large
// result takes long, and its text more memory than itself.
func (o *body) value(v any, check func() error) error {
	list := func(n int, fn func(i int)) error {
		o.b = append(o.b, '[')
		for i := range n {
			if i > 0 {
				o.b = append(o.b, ',')
			}
			fn(i)
			if err := errors.Join(check(), o.grown()); err != nil {
				return err
			}
		}
		o.b = append(o.b, ']')
		return nil
	}
	switch v := v.(type) {
	case promql.Vector:
		return list(len(v), func(i int) { o.b = appendSample(o.b, v[i]) })
	case promql.Matrix:
		return list(len(v), func(i int) { o.b = appendSeries(o.b, v[i]) })
	case promql.Scalar:
		o.b = appendPoint(o.b, v.T, v.V)
	case promql.String:
		o.b = appendTime(append(o.b, '['), v.T)
		o.b = append(appendString(append(o.b, ','), v.V), ']')
	default:
		o.b = append(o.b, "null"...)
	}
	return o.grown()
}
