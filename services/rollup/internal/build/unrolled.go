package build

import (
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// trialSeries is how many series decide, at least, whether rows are made; at most twice as many do. They cost as much as
// that many series of the hour, so an hour of a few hundred series must not be tried whole.
const trialSeries = 64

// unrolled says which of the resolutions get no rows, because these would be no smaller than the samples that they stand
// for: rows of a minute have six columns, and with a sample every 10 s they are made of six values. Some series of the
// hour, evenly spread, are encoded in both ways. The result is a function of the samples, so every worker that makes the
// plan decides the same.
func unrolled(raw []chunk.Series, of []timegrid.Resolution) (map[timegrid.Resolution]bool, error) {
	if len(raw) == 0 || len(of) == 0 {
		return nil, nil
	}
	every := max(1, len(raw)/trialSeries)
	var some []chunk.Series
	for i := 0; i < len(raw); i += every {
		some = append(some, raw[i])
	}
	samples, err := chunkBytes(some)
	if err != nil {
		return nil, err
	}
	out := map[timegrid.Resolution]bool{}
	for _, res := range of {
		roller := rollup.NewRoller(res)
		rows := make([]chunk.Series, len(some))
		for i := range some {
			rows[i] = roller.Roll(&some[i])
		}
		n, err := chunkBytes(rows)
		if err != nil {
			return nil, err
		}
		out[res] = n >= samples
	}
	return out, nil
}

// chunkBytes is the size of a chunk of the series.
func chunkBytes(series []chunk.Series) (int, error) {
	w := writers.Get().(*chunk.Writer)
	defer func() {
		w.Forget()
		writers.Put(w)
	}()
	for i := range series {
		if err := w.Add(&series[i]); err != nil {
			return 0, err
		}
	}
	files, err := w.Finish()
	return len(files.Chunk), err
}
