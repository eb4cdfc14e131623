package build

import (
	"bytes"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
)

// encoder makes chunks of series: a metric of many rows has chunks of its own, so that a query
// for it reads nothing else; all others share chunks, so that objects stay few.
type encoder struct {
	metricRows int // from which on a metric has chunks of its own
	maxRows    int // of one chunk, about
	kept       *spill
	mixed      *chunkBuilder
}

// newEncoder makes one that all resolutions of an hour share, because they have the same
// labels, whose encoding is the expensive part. kept is where chunks are put; nil is memory.
func newEncoder(metricRows, maxRows int, kept *spill) *encoder {
	return &encoder{metricRows, maxRows, kept, newChunkBuilder(layout.MixedMetrics, maxRows, kept)}
}

// free gives memory back for other jobs.
func (e *encoder) free() { e.mixed.free() }

// encode makes the chunks of series, which are in the order of their metrics.
func (e *encoder) encode(series []chunk.Series) ([]publish.Output, error) {
	var outs []publish.Output
	for from := 0; from < len(series); {
		name, rows, to := series[from].Name(), 0, from
		for to < len(series) && series[to].Name() == name {
			rows += series[to].Rows()
			to++
		}
		into := e.mixed
		if rows >= e.metricRows {
			into = newChunkBuilder(name, e.maxRows, e.kept)
		}
		for i := from; i < to; i++ {
			if err := into.add(&series[i], &outs); err != nil {
				return nil, err
			}
		}
		if into != e.mixed {
			if err := into.finish(&outs); err != nil {
				return nil, err
			}
			into.free()
		}
		from = to
	}
	err := e.mixed.finish(&outs)
	return outs, err
}

// writers keep their memory from chunk to chunk, and from job to job while it is not short.
var writers = sync.Pool{New: func() any { return chunk.NewWriter(chunk.Options{}) }}

// chunkBuilder gathers the series of one chunk after the other.
type chunkBuilder struct {
	metric string
	limit  int // rows
	w      *chunk.Writer
	rows   int
	series int
	kept   *spill
}

func newChunkBuilder(metric string, limit int, kept *spill) *chunkBuilder {
	return &chunkBuilder{metric: metric, limit: limit, w: writers.Get().(*chunk.Writer), kept: kept}
}

func (b *chunkBuilder) free() {
	b.w.Forget()
	writers.Put(b.w)
}

// add takes a series; when that would pass the limit, it finishes the chunk before.
func (b *chunkBuilder) add(s *chunk.Series, outs *[]publish.Output) error {
	// A series is never split, so one that is longer than the limit has a chunk of its own.
	if b.rows > 0 && b.rows+s.Rows() > b.limit {
		if err := b.finish(outs); err != nil {
			return err
		}
	}
	b.rows += s.Rows()
	b.series++
	return b.w.Add(s)
}

// finish ends the chunk, if anything is in it.
func (b *chunkBuilder) finish(outs *[]publish.Output) error {
	if b.series == 0 {
		return nil
	}
	files, err := b.w.Finish()
	if err != nil {
		return err
	}
	body, err := b.content(files.Chunk)
	if err != nil {
		return err
	}
	index, err := b.content(files.Index)
	if err != nil {
		return err
	}
	*outs = append(*outs, publish.Output{
		Metric: b.metric, Chunk: body, Index: index, FooterOffset: uint64(files.FooterOffset),
		Series: uint64(files.Series), Samples: files.Samples, MinTime: files.MinT, MaxTime: files.MaxT,
	})
	b.w.Reset()
	b.rows, b.series = 0, 0
	return nil
}

// content copies what the writer lends only until its next chunk.
func (b *chunkBuilder) content(p []byte) (publish.Content, error) {
	if b.kept != nil {
		return b.kept.keep(p)
	}
	return publish.Bytes(bytes.Clone(p)), nil
}
