package rollup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
)

// made is everything that a plan's generation publishes: a function of the plan.
type made struct {
	counts  rollup.Counts
	outputs map[timegrid.Resolution][]publish.Output
	// cost is the estimate of what was made of frames took of memory; 0 where it was not.
	cost int64
	kept *spill // of outputs; nil when they are in memory
}

// close lets go of outputs that are not in memory.
func (m *made) close() error { return m.kept.close() }

// make makes the chunks of the resolutions, of the plan's frames or of the former generation
// (nil for none) and what is new; step is called after each part. Nothing of a plan whose
// records are not conserved is given. The caller closes what it gets. Where a part takes
// more than jobs.memory the error wraps rollup.ErrTooLarge.
func (s *Service) make(ctx context.Context, p *planned, before *catalog.Block, resolutions []timegrid.Resolution, step func() error) (out *made, err error) {
	m := &made{outputs: map[timegrid.Resolution][]publish.Output{}}
	if p.Parts > 1 {
		if m.kept, err = newSpill(s.cfg.Jobs.Dir); err != nil {
			return nil, err
		}
	}
	defer func() {
		if out != m || err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	mixed := s.newSheaf(layout.MixedMetrics, m.kept) // one for all resolutions: they have the same labels
	defer mixed.free()
	for i := range p.Parts {
		part := rollup.Part{Index: i, Of: p.Parts}
		raw, counts, err := s.extend(ctx, p, before, part)
		if errors.Is(err, errNotExtendable) && i > 0 && before != nil {
			// The parts before were made of the former generation, whose counts are of all parts.
			return s.make(ctx, p, nil, resolutions, step)
		}
		if errors.Is(err, errNotExtendable) {
			before = nil
			var cost int64
			raw, counts, cost, err = s.whole(ctx, p, part)
			m.cost += cost
		}
		if err != nil {
			return nil, err
		}
		m.counts.Add(counts)
		series := raw
		for _, res := range timegrid.Resolutions() {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if series = roll(raw, series, res); !slices.Contains(resolutions, res) {
				continue
			}
			outs, err := s.encode(series, mixed)
			if err != nil {
				return nil, fmt.Errorf("encode %s: %w", res, err)
			}
			m.outputs[res] = append(m.outputs[res], outs...)
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	if before != nil {
		s.m.extended.Inc()
	}
	// The parts together must have every record, too.
	if m.counts.Inputs != p.Records() {
		return nil, &rollup.ConservationError{Counts: m.counts}
	}
	return m, m.counts.Conserved()
}

// whole makes the raw series of a part of the plan from all of its frames.
func (s *Service) whole(ctx context.Context, p *planned, part rollup.Part) ([]chunk.Series, rollup.Counts, int64, error) {
	b := rollup.NewBuilder(p.Hour, p.Order(), part)
	b.Limit(int64(s.cfg.Jobs.Memory))
	if err := s.read(ctx, b, p.Inputs); err != nil {
		return nil, rollup.Counts{}, 0, err
	}
	cost := b.Bytes()
	series, counts, err := b.Finish()
	return series, counts, cost, err
}

// read gives the builder its frames.
func (s *Service) read(ctx context.Context, b *rollup.Builder, entries []accepted.Batch) error {
	dec := s.decoder()
	return s.frames.each(ctx, entries, func(i int, raw []byte) error {
		s.m.frameBytes.Add(float64(len(raw)))
		f, err := dec.decode(raw)
		if err != nil {
			return &UnreadableError{entries[i], err}
		}
		return b.Add(i, f)
	})
}

// frameDecoder reuses the memory of one batch.
type frameDecoder struct {
	d   *frame.Decoder
	lim frame.Limits
	b   frame.Batch
}

func (s *Service) decoder() *frameDecoder {
	return &frameDecoder{d: frame.NewDecoder(), lim: frame.Limits{EncodedBytes: int(s.cfg.Jobs.MaxFrame)}}
}

func (d *frameDecoder) decode(raw []byte) (*frame.Batch, error) {
	if err := d.d.Decode(raw, &d.b, d.lim); err != nil {
		return nil, err
	}
	return &d.b, nil
}

// roll rolls the raw series up to w, given their rows in the next finer resolution.
func roll(raw, finer []chunk.Series, res timegrid.Resolution) []chunk.Series {
	if res == timegrid.Raw {
		return raw
	}
	roller := rollup.NewRoller(res)
	out := make([]chunk.Series, len(raw))
	for i := range raw {
		out[i] = roller.RollFrom(&raw[i], &finer[i])
	}
	return out
}

// encode makes chunks of series in the order of metrics: a metric of many rows has chunks
// of its own, the others share mixed.
func (s *Service) encode(series []chunk.Series, mixed *sheaf) ([]publish.Output, error) {
	var outs []publish.Output
	for from := 0; from < len(series); {
		name, rows, to := series[from].Name(), 0, from
		for to < len(series) && series[to].Name() == name {
			rows += series[to].Rows()
			to++
		}
		into := mixed
		if rows >= s.cfg.Chunks.MetricSamples {
			into = s.newSheaf(name, mixed.kept)
		}
		for i := from; i < to; i++ {
			if err := into.add(&series[i], &outs); err != nil {
				return nil, err
			}
		}
		if into != mixed {
			if err := into.end(&outs); err != nil {
				return nil, err
			}
			into.free()
		}
		from = to
	}
	err := mixed.end(&outs)
	return outs, err
}

// writers keep their memory from chunk to chunk, and from job to job while it is not short.
var writers = sync.Pool{New: func() any { return chunk.NewWriter(chunk.Options{}) }}

// sheaf is the series of one chunk to be.
type sheaf struct {
	metric string
	limit  int
	w      *chunk.Writer
	rows   int
	series int
	kept   *spill // where its chunks are put; nil is memory
}

func (s *Service) newSheaf(metric string, kept *spill) *sheaf {
	return &sheaf{metric: metric, limit: s.cfg.Chunks.MaxSamples, w: writers.Get().(*chunk.Writer), kept: kept}
}

func (f *sheaf) free() {
	f.w.Reset()
	writers.Put(f.w)
}

func (f *sheaf) add(s *chunk.Series, outs *[]publish.Output) error {
	if f.rows > 0 && f.rows+s.Rows() > f.limit {
		if err := f.end(outs); err != nil {
			return err
		}
	}
	f.rows += s.Rows()
	f.series++
	return f.w.Add(s)
}

func (f *sheaf) end(outs *[]publish.Output) error {
	if f.series == 0 {
		return nil
	}
	files, err := f.w.Finish()
	if err != nil {
		return err
	}
	body, err := f.content(files.Chunk)
	if err != nil {
		return err
	}
	index, err := f.content(files.Index)
	if err != nil {
		return err
	}
	*outs = append(*outs, publish.Output{
		Metric: f.metric, Chunk: body, Index: index, FooterOffset: uint64(files.FooterOffset),
		Series: uint64(files.Series), Samples: files.Samples, MinTime: files.MinT, MaxTime: files.MaxT,
	})
	f.w.Reset()
	f.rows, f.series = 0, 0
	return nil
}

// content keeps what the writer lends until its next chunk.
func (f *sheaf) content(b []byte) (publish.Content, error) {
	if f.kept != nil {
		return f.kept.keep(b)
	}
	return publish.Bytes(bytes.Clone(b)), nil
}
