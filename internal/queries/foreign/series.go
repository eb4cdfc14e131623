package foreign

import (
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"

	"lightmetrics.dev/lightmetrics/internal/series/agentlabel"
	"lightmetrics.dev/lightmetrics/internal/series/samples"
)

// Series is a series of another region with its samples, encoded.
type Series struct {
	Labels labels.Labels
	// Agents that the samples are of, where no label says it.
	Agents agentlabel.Seen
	chunks []chunk
	n      int
}

// chunk is consecutive samples. Reader has decoded data once, so that decoding it again can't fail.
type chunk struct {
	mint, maxt int64 // milliseconds
	n          int32
	data       []byte
}

// Samples of the series.
func (s *Series) Samples() int { return s.n }

// Times are those of the first and the last sample, milliseconds; the series must have one.
func (s *Series) Times() (first, last int64) {
	return s.chunks[0].mint, s.chunks[len(s.chunks)-1].maxt
}

// Runs reads the samples of a series in [mint, maxt]. It uses its memory again.
type Runs struct {
	chunks     []chunk
	mint, maxt int64
	cols       columns
	before     *histogram.FloatHistogram
	err        error
}

// Reset begins a series; nil has no samples.
func (r *Runs) Reset(s *Series, mint, maxt int64) {
	r.chunks, r.mint, r.maxt, r.before, r.err = nil, mint, maxt, nil, nil
	if s != nil {
		r.chunks = s.chunks
	}
}

// SkipTo lets Next leave out what lies before t.
func (r *Runs) SkipTo(t int64) { r.mint = max(r.mint, t) }

// Next returns the next run that is not empty; false at the end. It is good until the next call and must not be changed,
// but its histograms may be kept.
func (r *Runs) Next() (samples.Run, bool) {
	// A long series is read in pieces, of which most may lie before the range.
	if len(r.chunks) > 8 && r.chunks[0].maxt < r.mint {
		r.chunks = r.chunks[sort.Search(len(r.chunks), func(i int) bool { return r.chunks[i].maxt >= r.mint }):]
	}
	for len(r.chunks) > 0 {
		c := r.chunks[0]
		if c.mint > r.maxt {
			r.chunks = nil
			break
		}
		r.chunks = r.chunks[1:]
		if c.maxt < r.mint {
			r.before = nil
			continue
		}
		if r.err = r.cols.decode(c.data, int(c.n)); r.err != nil {
			r.chunks = nil
			break
		}
		run := samples.Run{T: r.cols.t, V: r.cols.v, ST: r.cols.st, Before: r.before}
		if len(r.cols.h) > 0 {
			run.H = r.cols.h
		}
		if len(r.cols.sts) > 0 {
			run.STs = r.cols.sts
		}
		r.before = run.Last()
		if run.Cut(r.mint, r.maxt); len(run.T) > 0 {
			return run, true
		}
	}
	return samples.Run{}, false
}

// Err is an error of what Reader has not checked: there is none.
func (r *Runs) Err() error { return r.err }
