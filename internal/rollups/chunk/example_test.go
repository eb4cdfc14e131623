package chunk_test

import (
	"fmt"
	"math"

	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// Write a chunk, then read one series of it as a cold query does: the index, the ranges
// that the plan names, the rows.
func Example() {
	w := chunk.NewWriter(chunk.Options{})
	for _, host := range []string{"a", "b"} {
		s := &chunk.Series{ID: series.ID{Agent: host, Type: series.Gauge, Labels: []series.Label{{Name: "__name__", Value: "load1"}, {Name: "host", Value: host}}}}
		s.T, s.V = []int64{10e9, 20e9, 30e9}, []float64{0.5, 0.75, 0.7}
		if err := w.Add(s); err != nil {
			fmt.Println(err)
			return
		}
	}
	files, err := w.Finish()
	if err != nil {
		fmt.Println(err)
		return
	}

	index, err := chunk.ReadIndex(files.Index, chunk.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	series := index.Select(chunk.Equal("__name__", "load1"), chunk.Equal("host", "b"))
	const gap = 512 << 10 // bytes that cost less than another request
	d := chunk.NewDecoder(index, chunk.Limits{})
	for _, r := range index.Plan(series, math.MinInt64, math.MaxInt64, gap) {
		d.Put(r.Offset, files.Chunk[r.Offset:r.End()]) // a GET of this range
	}
	var rows chunk.Columns
	for _, i := range series {
		if _, err := d.Series(i, math.MinInt64, math.MaxInt64, chunk.ColV, &rows); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(index.Series(i).Labels, rows.T, rows.V)
	}
	// Output: [{__name__ load1} {host b}] [10000000000 20000000000 30000000000] [0.5 0.75 0.7]
}
