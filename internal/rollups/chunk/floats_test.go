package chunk

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Columns that are encoded without a chunk come back bit for bit, in any order; a decoder that is used again takes no
// further memory.
func TestFloats(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	special := []float64{0, math.Copysign(0, -1), math.NaN(), math.Float64frombits(0x7ff0000000000002), math.Inf(1), math.MaxFloat64, 5e-324}
	var e FloatsEncoder
	var d FloatsDecoder
	var buf, got []float64
	for _, rows := range []int{1, 2, 7, 90, 1000} {
		for _, series := range []int{1, 3, 16} {
			values := make([]float64, rows*series)
			for i := range values {
				switch i / rows % 3 {
				case 0:
					values[i] = float64(i * 10)
				case 1:
					values[i] = rnd.NormFloat64()
				case 2:
					values[i] = special[rnd.IntN(len(special))]
				}
			}
			raw := e.Append([]byte("before"), values, rows)[len("before"):]
			if err := d.Open(raw); err != nil {
				t.Fatal(err)
			}
			for _, i := range rnd.Perm(series) {
				var err error
				if got, err = d.Append(append(buf[:0], 42), i); err != nil {
					t.Fatal(err)
				}
				want := values[i*rows : (i+1)*rows]
				if got[0] != 42 || !slices.EqualFunc(got[1:], want, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }) {
					t.Fatalf("%d rows of %d series: column %d is %v, want %v", rows, series, i, got[1:], want)
				}
				buf = got
			}
			if _, err := d.Append(nil, series); err == nil {
				t.Error("a column that is not there was read")
			}
			raw[len(raw)/2] ^= 1
			if err := d.Open(raw); err == nil {
				t.Error("damaged bytes were opened")
			}
			raw[len(raw)/2] ^= 1
			if n := testing.AllocsPerRun(10, func() {
				if d.Open(raw) != nil {
					t.Fail()
				}
				buf, _ = d.Append(buf[:0], 0)
			}); n > 0 {
				t.Errorf("%d rows of %d series: reading takes %v allocations", rows, series, n)
			}
		}
	}
}
