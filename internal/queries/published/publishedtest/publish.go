// Package publishedtest publishes blocks directly, for tests and benchmarks of their
// readers: the real core and formats, without ownership, plans or two phases.
package publishedtest

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Batch is an accepted batch.
type Batch struct {
	Frame      *frame.Batch
	AcceptedAt int64 // Unix nanoseconds
}

// Publisher writes blocks of one authority.
type Publisher struct {
	Store     objstore.Store
	Authority string
	Shards    uint32
	// PerChunk is the most series of a chunk, 0 for no bound: a metric with more has chunks
	// of its own, others share.
	PerChunk int
	// Chunk are the options of its writer.
	Chunk chunk.Options
	// Unrolled says which rolled blocks are without rows; nil: none.
	Unrolled func(catalog.Name) bool
}

// Hours that have samples of the batches, ascending.
func Hours(batches []Batch) []timegrid.Hour {
	var out []timegrid.Hour
	for _, b := range batches {
		for i := range b.Frame.Groups {
			for _, t := range b.Frame.Groups[i].Timestamps {
				if h := timegrid.HourOfNS(t); !slices.Contains(out, h) {
					out = append(out, h)
				}
			}
		}
	}
	slices.Sort(out)
	return out
}

// Publish writes generation gen of the hour for every shard that has a batch with samples
// in it, in the resolutions. It returns the blocks.
func (p *Publisher) Publish(ctx context.Context, h timegrid.Hour, gen uint64, batches []Batch, resolutions ...timegrid.Resolution) ([]*catalog.Block, error) {
	of := map[shard.ID][]Batch{}
	for _, b := range batches {
		if slices.Contains(Hours([]Batch{b}), h) {
			s := shard.Of(b.Frame.Identity.Agent, p.Shards)
			of[s] = append(of[s], b)
		}
	}
	var out []*catalog.Block
	for s, bs := range of {
		blocks, err := p.shard(ctx, h, s, gen, bs, resolutions)
		if err != nil {
			return nil, fmt.Errorf("publish %s of shard %s: %w", h, s, err)
		}
		out = append(out, blocks...)
	}
	return out, nil
}

func (p *Publisher) shard(ctx context.Context, h timegrid.Hour, s shard.ID, gen uint64, batches []Batch, resolutions []timegrid.Resolution) ([]*catalog.Block, error) {
	inputs := make([]accepted.Claim, len(batches))
	ids := make([]identity.Batch, len(batches))
	for i, b := range batches {
		inputs[i], ids[i] = accepted.Claim{Identity: b.Frame.Identity, AcceptedAt: b.AcceptedAt}, b.Frame.Identity
	}
	builder := rollup.NewBuilder(h, inputs, rollup.Part{})
	for i, b := range batches {
		if err := builder.Add(i, b.Frame); err != nil {
			return nil, err
		}
	}
	raw, counts, err := builder.Finish()
	if err != nil {
		return nil, err
	}
	in, err := catalog.NewInputs(ids)
	if err != nil {
		return nil, err
	}
	var blocks []*catalog.Block
	for _, res := range resolutions {
		series := raw
		if res != timegrid.Raw {
			roller := rollup.NewRoller(res)
			series = make([]chunk.Series, len(raw))
			for i := range raw {
				series[i] = roller.Roll(&raw[i])
			}
		}
		block := &catalog.Block{
			AuthorityID: p.Authority, Name: catalog.Name{Hour: h, Shard: s, Resolution: res, Generation: gen}, Shards: p.Shards,
			Fence: 1, TransactionID: fmt.Sprintf("t-%s-%s-%s-%d", h, s, res, gen), PlanKey: layout.RollupPlan(h, s, gen),
			PlanSHA256: in.Digest(), Supersedes: gen - 1, CreatedAt: 1, WorkerID: "test", Inputs: in,
			Counts: catalog.Counts{Records: in.Records(), Published: counts.Published, OtherHours: counts.OtherHours,
				Overlapped: counts.Overlapped, Duplicates: counts.Duplicates},
		}
		if block.Unrolled = res != timegrid.Raw && p.Unrolled != nil && p.Unrolled(block.Name); block.Unrolled {
			series = nil
		}
		if err := p.objects(ctx, block, series); err != nil {
			return nil, err
		}
		if err := block.Validate(); err != nil {
			return nil, err
		}
		if _, err := p.Store.Create(ctx, block.Name.Key(), block.Marshal(), objstore.PutOptions{}); err != nil {
			return nil, err
		}
		blocks = append(blocks, block)
	}
	return blocks, nil
}

func (p *Publisher) objects(ctx context.Context, block *catalog.Block, series []chunk.Series) error {
	w := chunk.NewWriter(p.Chunk)
	for len(series) > 0 {
		n := len(series)
		if p.PerChunk > 0 {
			n = min(n, p.PerChunk)
		}
		w.Reset()
		metric := series[0].Name()
		for i := range series[:n] {
			if series[i].Name() != metric {
				metric = layout.MixedMetrics
			}
			if err := w.Add(&series[i]); err != nil {
				return err
			}
		}
		series = series[n:]
		f, err := w.Finish()
		if err != nil {
			return err
		}
		if metric == "" || len(metric) > catalog.MaxMetricBytes {
			metric = layout.MixedMetrics
		}
		o := catalog.Object{
			Metric: metric, ChunkBytes: uint64(len(f.Chunk)), ChunkSHA256: f.ID, FooterOffset: uint64(f.FooterOffset),
			IndexBytes: uint64(len(f.Index)), IndexSHA256: f.IndexID, Series: uint64(f.Series), Samples: f.Samples, MinTime: f.MinT, MaxTime: f.MaxT,
		}
		o.ChunkKey = layout.RollupChunk(block.Name.Resolution, block.Name.Hour, metric, f.ID, 0)
		o.IndexKey = layout.RollupIndex(block.Name.Hour, f.IndexID, 0)
		for key, body := range map[string][]byte{o.ChunkKey: f.Chunk, o.IndexKey: f.Index} {
			if _, err := p.Store.Create(ctx, key, slices.Clone(body), objstore.PutOptions{}); err != nil && !errors.Is(err, objstore.ErrExists) {
				return err
			}
		}
		block.Objects = append(block.Objects, o)
		block.Counts.Series += o.Series
		block.Counts.Samples += o.Samples
	}
	return nil
}

// Views gives the blocks that a store has now.
type Views struct{ Catalog *catalog.Catalog }

// NewViews reads the blocks of an authority.
func NewViews(r objstore.Reader, authority string) (Views, error) {
	c, err := catalog.New(catalog.Config{Reader: r, AuthorityID: authority})
	return Views{c}, err
}

// View reads the hours again. Not for concurrent use.
func (v Views) View(ctx context.Context, from, to timegrid.Hour) (*catalog.View, error) {
	return v.Catalog.Refresh(ctx, from, to)
}
