package frame

import (
	"encoding/binary"
	"math"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Protobuf tags: field number and wire type.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

// payloadWriter writes the protobuf Batch; its slices are scratch memory that it reuses.
type payloadWriter struct {
	buf, group, col, col2, modes []byte
	ints                         []int64
}

func appendTag(dst []byte, field, wire int) []byte {
	return append(dst, byte(field<<3|wire)) // field numbers are below 16
}

func appendBytes[T string | []byte](dst []byte, field int, v T) []byte {
	dst = appendTag(dst, field, wireBytes)
	dst = binary.AppendUvarint(dst, uint64(len(v)))
	return append(dst, v...)
}

func appendVarint(dst []byte, field int, v uint64) []byte {
	return binary.AppendUvarint(appendTag(dst, field, wireVarint), v)
}

// write returns the payload of a valid batch; the next call overwrites it.
func (w *payloadWriter) write(b *Batch) []byte {
	w.col = w.col[:0]
	w.col = appendBytes(w.col, 1, b.Identity.Agent)
	w.col = appendBytes(w.col, 2, b.Identity.Boot)
	w.col = appendVarint(w.col, 3, b.Identity.SeqStart)
	w.col = appendVarint(w.col, 4, b.Identity.SeqEnd)
	w.buf = appendBytes(w.buf[:0], 1, w.col)
	w.writeStrings(b.Strings[1:])
	if len(b.Resource) > 0 {
		w.col = w.col[:0]
		for _, l := range b.Resource {
			w.col = binary.AppendUvarint(w.col, uint64(l.Name))
			w.col = binary.AppendUvarint(w.col, uint64(l.Value))
		}
		w.buf = appendBytes(w.buf, 5, w.col)
	}
	next := nextRef(b.Resource, 1)
	for i := range b.Groups {
		next = w.writeGroup(&b.Groups[i], next)
		w.buf = appendBytes(w.buf, 6, w.group)
	}
	w.writeHelps(b.Helps)
	return w.buf
}

// nextRef is the entry after the highest one that refs, or any label before them, refers to.
func nextRef(refs []series.LabelRef, next uint32) uint32 {
	for _, l := range refs {
		next = max(next, l.Name+1, l.Value+1)
	}
	return next
}

// writeGroup writes the group into w.group and returns the next unused string.
func (w *payloadWriter) writeGroup(g *Group, next uint32) uint32 {
	w.group = appendVarint(w.group[:0], 1, uint64(len(g.Timestamps)))
	w.col = appendTimestamps(w.col[:0], g.Timestamps)
	w.group = appendBytes(w.group, 2, w.col)
	next = w.writeSeries(g.Series, next)
	if len(g.Histograms) > 0 {
		for i := range g.Histograms {
			w.col = appendHistogram(w.col[:0], &g.Histograms[i])
			w.group = appendBytes(w.group, 11, w.col)
		}
		return next
	}
	rows := len(g.Timestamps)
	if cap(w.ints) < rows {
		w.ints = make([]int64, rows)
	}
	w.col, w.modes = w.col[:0], w.modes[:0]
	for s := range g.Series {
		var mode byte
		w.col, mode = appendValues(w.col, g.Values[s*rows:(s+1)*rows], w.ints[:rows])
		w.modes = append(w.modes, mode)
	}
	w.group = appendBytes(w.group, 9, w.modes)
	w.group = appendBytes(w.group, 10, w.col)
	return next
}

func (w *payloadWriter) writeSeries(series []series.Ref, next uint32) uint32 {
	w.col = w.col[:0]
	units, starts := false, false
	for i := range series {
		w.col = binary.AppendUvarint(w.col, uint64(len(series[i].Labels)))
		units = units || series[i].Unit != 0
		starts = starts || series[i].StartTime != 0
	}
	w.group = appendBytes(w.group, 3, w.col)
	ref := func(dst []byte, i uint32) []byte {
		if i == next {
			next++
			return append(dst, 0)
		}
		next = max(next, i+1)
		return binary.AppendUvarint(dst, uint64(i))
	}
	names, values := w.col[:0], w.col2[:0]
	for i := range series {
		for _, l := range series[i].Labels {
			names = ref(names, l.Name)
			values = ref(values, l.Value)
		}
	}
	w.group = appendBytes(w.group, 4, names)
	w.group = appendBytes(w.group, 5, values)
	w.col, w.col2 = names[:0], values
	for i := range series {
		w.col = append(w.col, byte(series[i].Type))
	}
	w.group = appendBytes(w.group, 6, w.col)
	if units {
		w.col = w.col[:0]
		for i := range series {
			w.col = binary.AppendUvarint(w.col, uint64(series[i].Unit))
		}
		w.group = appendBytes(w.group, 7, w.col)
	}
	if starts {
		w.col = w.col[:0]
		last := int64(0)
		for i := range series {
			w.col = appendZigzag(w.col, series[i].StartTime-last)
			last = series[i].StartTime
		}
		w.group = appendBytes(w.group, 8, w.col)
	}
	return next
}

func appendHistogram(dst []byte, h *series.Histogram) []byte {
	if h.Schema != 0 {
		dst = appendVarint(dst, 1, zigzag(int64(h.Schema)))
	}
	for i, v := range [...]float64{h.ZeroThreshold, h.ZeroCount, h.Count, h.Sum} {
		if math.Float64bits(v) != 0 {
			dst = appendTag(dst, 2+i, wireFixed64)
			dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
		}
	}
	dst = appendSpans(dst, 6, h.PositiveSpans)
	dst = appendFloats(dst, 7, h.PositiveBuckets)
	dst = appendSpans(dst, 8, h.NegativeSpans)
	dst = appendFloats(dst, 9, h.NegativeBuckets)
	return appendFloats(dst, 10, h.CustomValues)
}

func appendSpans(dst []byte, field int, v []int32) []byte {
	if len(v) == 0 {
		return dst
	}
	n := 0
	for _, s := range v {
		n += uvarintLen(zigzag(int64(s)))
	}
	dst = binary.AppendUvarint(appendTag(dst, field, wireBytes), uint64(n))
	for _, s := range v {
		dst = appendZigzag(dst, int64(s))
	}
	return dst
}

func appendFloats(dst []byte, field int, v []float64) []byte {
	if len(v) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(appendTag(dst, field, wireBytes), uint64(8*len(v)))
	for _, x := range v {
		dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
	}
	return dst
}
