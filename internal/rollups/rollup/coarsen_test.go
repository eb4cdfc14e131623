package rollup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestRollFromEqualsRoll: five minutes made of minutes, and hours of those, are those made of
// samples. Whole numbers lose nothing on the way: their rows are the same as when each
// bucket is summed by itself.
func TestRollFromEqualsRoll(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		typ := []series.Type{series.Counter, series.Gauge, series.HistogramCumulative, series.HistogramDelta}[seed%4]
		raw := chunk.Series{ID: series.ID{Agent: "a", Type: typ}}
		v := 0.0
		for ns := testHour.StartMS()*1e6 + 1e6; timegrid.HourOfNS(ns) == testHour; ns += 1 + rnd.Int64N(40e9) {
			if v += float64(rnd.IntN(10)); rnd.IntN(20) == 0 {
				v = 0
			}
			x := v
			if rnd.IntN(20) == 0 {
				x = math.Float64frombits(value.StaleNaN)
			}
			raw.T = append(raw.T, ns)
			if typ.Histogram() {
				raw.H = append(raw.H, series.Histogram{Schema: int32(rnd.IntN(3)), Sum: x, Count: 2 * v, PositiveSpans: []int32{0, 2}, PositiveBuckets: []float64{v, v}})
			} else {
				raw.V = append(raw.V, x)
			}
		}
		minutes := NewRoller(timegrid.OneMinute).Roll(&raw)
		five, hour := NewRoller(timegrid.FiveMinutes), NewRoller(timegrid.OneHour)
		fives := rollFrom(five, &raw, &minutes)
		for name, pair := range map[string][2]chunk.Series{
			"5m from 1m": {fives, five.Roll(&raw)},
			"1h from 5m": {rollFrom(hour, &raw, &fives), hour.Roll(&raw)},
		} {
			if got, want := pair[0], pair[1]; !reflect.DeepEqual(got, want) && fmt.Sprintf("%v", got) != fmt.Sprintf("%v", want) {
				t.Fatalf("seed %d, %s:\n%v\nwant\n%v", seed, name, got, want)
			}
		}
		if typ != series.Gauge {
			continue
		}
		for res, got := range map[timegrid.Resolution]chunk.Series{timegrid.OneMinute: minutes, timegrid.FiveMinutes: fives, timegrid.OneHour: hour.Roll(&raw)} {
			for i, want := range byHand(&raw, res) {
				c := &got.Columns
				if g := [...]float64{float64(got.T[i]), float64(c.Count[i]), float64(c.Stale[i]), float64(c.FirstT[i]), float64(c.LastT[i]), c.First[i], c.Last[i],
					c.Min[i], c.Max[i], c.Sum[i], c.SumC[i]}; g != want {
					t.Fatalf("seed %d, %s, row %d: %v, want %v", seed, res, i, g, want)
				}
			}
		}
	}
}

// byHand gives the rows of a gauge of whole numbers: end, count, stale, times and values of
// first and last, least, greatest, sum, compensation.
func byHand(raw *chunk.Series, res timegrid.Resolution) (rows [][11]float64) {
	last := int64(-1)
	for i, ns := range raw.T {
		ms := timegrid.Millisecond(ns)
		if i+1 < len(raw.T) && timegrid.Millisecond(raw.T[i+1]) == ms {
			continue
		}
		if end := res.BucketEnd(ms); end != last {
			last = end
			rows = append(rows, [11]float64{float64(end * 1e6)})
		}
		r := &rows[len(rows)-1]
		x, t := raw.V[i], float64(ns)
		if value.IsStaleNaN(x) {
			r[2]++
			continue
		}
		if r[1]++; r[1] == 1 {
			r[3], r[5], r[7], r[8] = t, x, x, x
		}
		r[4], r[6], r[7], r[8], r[9] = t, x, min(r[7], x), max(r[8], x), r[9]+x
	}
	return rows
}

// Decimals are summed as decimals, to the nearest float64.
func rollFrom(r *Roller, raw, fine *chunk.Series) (out chunk.Series) {
	r.RollInto(&out, raw, fine)
	return out
}

// TestRowsWithoutFinerOnes: five minutes and hours that are made of samples directly have the bits of those that are made of
// minutes, whatever the digits and the size of the values.
func TestRowsWithoutFinerOnes(t *testing.T) {
	direct := 0
	for seed := range uint64(400) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		raw := chunk.Series{ID: series.ID{Agent: "a", Type: series.Gauge}}
		digits, point := 1+rnd.IntN(16), rnd.IntN(8)
		for ns := testHour.StartMS()*1e6 + 1e6; timegrid.HourOfNS(ns) == testHour; ns += 1 + rnd.Int64N(30e9) {
			n := rnd.Int64N(int64(math.Pow10(rnd.IntN(digits)+1))) - int64(math.Pow10(rnd.IntN(digits)+1))/4
			raw.T, raw.V = append(raw.T, ns), append(raw.V, chunk.FromDecimal(n, point))
		}
		if seed%20 == 0 {
			raw.V[rnd.IntN(len(raw.V))] = [...]float64{math.Pi, math.Copysign(0, -1), math.Inf(1), math.Float64frombits(value.StaleNaN)}[rnd.IntN(4)]
		}
		minutes := NewRoller(timegrid.OneMinute).Roll(&raw)
		fives := rollFrom(NewRoller(timegrid.FiveMinutes), &raw, &minutes)
		for res, want := range map[timegrid.Resolution]chunk.Series{
			timegrid.FiveMinutes: fives, timegrid.OneHour: rollFrom(NewRoller(timegrid.OneHour), &raw, &fives),
		} {
			r := NewRoller(res)
			got := r.Roll(&raw)
			if r.finer.grid == nil {
				direct++
			}
			for name, pair := range map[string][2][]float64{
				"First": {got.First, want.First}, "Last": {got.Last, want.Last}, "Min": {got.Min, want.Min}, "Max": {got.Max, want.Max},
				"Sum": {got.Sum, want.Sum}, "SumC": {got.SumC, want.SumC},
			} {
				for i := range pair[1] {
					if math.Float64bits(pair[0][i]) != math.Float64bits(pair[1][i]) {
						t.Fatalf("seed %d, %s: %s of row %d is %v, from minutes %v", seed, res, name, i, pair[0][i], pair[1][i])
					}
				}
			}
			if !reflect.DeepEqual([]any{got.T, got.Count, got.Stale, got.FirstT, got.LastT}, []any{want.T, want.Count, want.Stale, want.FirstT, want.LastT}) {
				t.Fatalf("seed %d, %s: times or counts differ", seed, res)
			}
		}
	}
	if direct < 200 || direct > 760 {
		t.Fatalf("%d of 800 were made without finer rows: one of the two ways is not tested", direct)
	}
}

func TestDecimalSums(t *testing.T) {
	raw := chunk.Series{ID: series.ID{Type: series.Gauge}}
	for i := range 360 {
		raw.T = append(raw.T, (testHour.StartMS()+int64(i+1)*10_000)*1e6)
		raw.V = append(raw.V, float64(i%7+1)/10)
	}
	for res, want := range map[timegrid.Resolution]float64{timegrid.OneMinute: 2.1, timegrid.FiveMinutes: 11.5, timegrid.OneHour: 143.4} {
		if got := NewRoller(res).Roll(&raw); got.Sum[0] != want || got.SumC[0] != 0 {
			t.Errorf("%s: %v and %v, want %v", res, got.Sum[0], got.SumC[0], want)
		}
	}
}

// Of samples in one millisecond only the last counts, stale ones too.
func TestMillisecondsFold(t *testing.T) {
	ms := testHour.StartMS() + 30_000
	raw := chunk.Series{ID: series.ID{Type: series.Gauge}}
	raw.T = []int64{ms * 1e6, ms*1e6 + 5, (ms + 1) * 1e6, (ms+1)*1e6 + 1}
	raw.V = []float64{1, 2, 3, math.Float64frombits(value.StaleNaN)}
	got := NewRoller(timegrid.OneMinute).Roll(&raw)
	if got.Rows() != 1 || got.Count[0] != 1 || got.Stale[0] != 1 || got.Sum[0] != 2 || got.FirstT[0] != ms*1e6+5 {
		t.Errorf("%+v", got.Columns)
	}
}
