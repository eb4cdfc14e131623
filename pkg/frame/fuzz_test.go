package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func addGoldens(f *testing.F) {
	for _, g := range goldens {
		f.Add(g.read(f))
	}
}

func typed(t *testing.T, err error) {
	t.Helper()
	if e := (*Error)(nil); !errors.As(err, &e) {
		t.Fatalf("error without a reason: %v", err)
	}
}

// mend makes the lengths and the checksums of a frame right.
func mend(f []byte) []byte {
	if len(f) < fixedHeader+checksumTail {
		return f
	}
	le := binary.LittleEndian
	n := int(le.Uint16(f[8:]))
	if n < fixedHeader+checksumTail || n > len(f) {
		return f
	}
	le.PutUint32(f[12:], uint32(len(f)-n))
	if f[5] == byte(None) {
		le.PutUint32(f[16:], uint32(len(f)-n))
	}
	return reseal(f)
}

// FuzzDecode mends the input, so that lengths and checksums do not hide the rest,
// and demands that what decodes is valid, and encodes to a frame with the same content.
func FuzzDecode(f *testing.F) {
	addGoldens(f)
	d, e := NewDecoder(), NewEncoder(Options{})
	lim := Limits{DecodedBytes: 1 << 20, Records: 1 << 14}
	f.Fuzz(func(t *testing.T, in []byte) {
		in = mend(bytes.Clone(in))
		var b Batch
		if err := d.Decode(in, &b, lim); err != nil {
			typed(t, err)
			return
		}
		if err := b.Validate(lim); err != nil {
			t.Fatalf("decoded batch is not valid: %v", err)
		}
		h, err := ParseHeader(in)
		if err != nil || h.Identity != b.Identity {
			t.Fatalf("header %+v, %v; batch %v", h, err, b.Identity)
		}
		out, err := e.Encode(nil, &b)
		if err != nil {
			t.Fatalf("decoded batch does not encode: %v", err)
		}
		var again Batch
		if err := d.Decode(out, &again, lim); err != nil {
			t.Fatalf("encoded again: %v", err)
		}
		if diff := diffBatch(&b, &again); diff != "" {
			t.Fatal(diff)
		}
	})
}

// FuzzPayload decodes the input as an uncompressed payload.
func FuzzPayload(f *testing.F) {
	var w payloadWriter
	ids := [3]identity.Batch{}
	for i, b := range []*Batch{sampleBatch(f), histogramBatch(f), helpBatch(f)} {
		ids[i] = b.Identity
		f.Add(bytes.Clone(w.write(b)), uint8(i))
	}
	lim := Limits{DecodedBytes: 1 << 20, Records: 1 << 14}
	d := NewDecoder()
	f.Fuzz(func(t *testing.T, payload []byte, of uint8) {
		id := ids[of%3]
		var b Batch
		if err := d.Decode(rawFrame(id, None, payload, len(payload)), &b, lim); err != nil {
			typed(t, err)
			return
		}
		if err := b.Validate(lim); err != nil {
			t.Fatalf("decoded batch is not valid: %v", err)
		}
	})
}

func FuzzParseHeader(f *testing.F) {
	addGoldens(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := ParseHeader(in)
		if err != nil {
			typed(t, err)
			return
		}
		n := headerLen(h.Identity)
		if n != int(h.HeaderLen) || n > MaxHeaderBytes {
			t.Fatalf("header of %d bytes says %d", n, h.HeaderLen)
		}
		if again, err := ParseHeader(in[:n]); err != nil || again != h {
			t.Fatalf("exact prefix gives %+v, %v", again, err)
		}
	})
}

func FuzzTimestamps(f *testing.F) {
	f.Add(appendTimestamps(nil, []int64{1e9, 2e9, 3e9}), uint16(3))
	f.Add(appendTimestamps(nil, []int64{math.MinInt64, 0, math.MaxInt64}), uint16(3))
	f.Fuzz(func(t *testing.T, col []byte, rows uint16) {
		out := make([]int64, max(1, rows))
		if err := decodeTimestamps(out, col); err != nil {
			typed(t, err)
			return
		}
		again := make([]int64, len(out))
		if err := decodeTimestamps(again, appendTimestamps(nil, out)); err != nil || !slices.Equal(out, again) {
			t.Fatalf("%v became %v, %v", out, again, err)
		}
		if !slices.IsSorted(out) {
			t.Fatalf("not sorted: %v", out)
		}
	})
}

func FuzzValues(f *testing.F) {
	for _, v := range [][]float64{{1, 2, 3}, {0.5, math.NaN()}, {math.Pi, math.E}, {4096, 0, 8192, 1, 2, 3, 4, 5, 6}} {
		col, mode := appendValues(nil, v, make([]int64, len(v)))
		f.Add(col, mode, uint8(len(v)))
	}
	f.Fuzz(func(t *testing.T, col []byte, mode byte, rows uint8) {
		out := make([]float64, max(1, rows))
		if err := decodeValues(out, len(out), []byte{mode}, col); err != nil {
			typed(t, err)
			return
		}
		if len(col) < len(out) {
			t.Fatalf("%d bytes paid for %d values", len(col), len(out))
		}
		again := make([]float64, len(out))
		back, m := appendValues(nil, out, make([]int64, len(out)))
		if err := decodeValues(again, len(out), []byte{m}, back); err != nil {
			t.Fatal(err)
		}
		for i := range out {
			if math.Float64bits(out[i]) != math.Float64bits(again[i]) {
				t.Fatalf("value %d: %x became %x", i, math.Float64bits(out[i]), math.Float64bits(again[i]))
			}
		}
	})
}
