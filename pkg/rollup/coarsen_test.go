package rollup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/prometheus/prometheus/model/value"

	"lightmetrics.dev/lightmetrics/pkg/chunk"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// TestCoarsenEqualsRoll: five minutes and hours made from minutes are those made from raw.
func TestCoarsenEqualsRoll(t *testing.T) {
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		typ := []frame.MetricType{frame.Counter, frame.Gauge, frame.HistogramCumulative, frame.HistogramDelta}[seed%4]
		raw := chunk.Series{Agent: "a", Type: typ}
		v := 0.0
		for ns := testHour.StartMS()*1e6 + 1e6; window.HourOfNS(ns) == testHour; ns += 1 + rnd.Int64N(40e9) {
			if v += float64(rnd.IntN(10)); rnd.IntN(20) == 0 {
				v = 0
			}
			x := v
			if rnd.IntN(20) == 0 {
				x = math.Float64frombits(value.StaleNaN)
			}
			raw.T = append(raw.T, ns)
			if typ.Histogram() {
				raw.H = append(raw.H, frame.Histogram{Schema: int32(rnd.IntN(3)), Sum: x, Count: 2 * v, PositiveSpans: []int32{0, 2}, PositiveBuckets: []float64{v, v}})
			} else {
				raw.V = append(raw.V, x)
			}
		}
		minutes := NewRoller(window.OneMinute).Roll(&raw)
		five := NewRoller(window.FiveMinutes).Roll(&raw)
		hour := NewRoller(window.OneHour).Roll(&raw)
		for name, pair := range map[string][2]chunk.Series{
			"5m from 1m": {Coarsen(&minutes, window.FiveMinutes), five},
			"1h from 1m": {Coarsen(&minutes, window.OneHour), hour},
			"1h from 5m": {Coarsen(&five, window.OneHour), hour},
		} {
			if got, want := pair[0], pair[1]; !reflect.DeepEqual(got, want) && fmt.Sprintf("%v", got) != fmt.Sprintf("%v", want) {
				t.Fatalf("seed %d, %s:\n%v\nwant\n%v", seed, name, got, want)
			}
		}
	}
}

// Of samples in one millisecond only the last counts, stale ones too.
func TestMillisecondsFold(t *testing.T) {
	ms := testHour.StartMS() + 30_000
	raw := chunk.Series{Type: frame.Gauge}
	raw.T = []int64{ms * 1e6, ms*1e6 + 5, (ms + 1) * 1e6, (ms+1)*1e6 + 1}
	raw.V = []float64{1, 2, 3, math.Float64frombits(value.StaleNaN)}
	got := NewRoller(window.OneMinute).Roll(&raw)
	if got.Rows() != 1 || got.Count[0] != 1 || got.Stale[0] != 1 || got.Sum[0] != 2 || got.FirstT[0] != ms*1e6+5 {
		t.Errorf("%+v", got.Columns)
	}
}
