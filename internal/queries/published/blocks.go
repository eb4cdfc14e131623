package published

import (
	"bytes"
	"context"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// object is an hour of one chunk of a query, and the series that were selected of it.
type object struct {
	*handle
	hour   timegrid.Hour
	series []int
}

// cached gives the handle the columns of its series that are in the cache, and the blocks
// of the others; it returns those blocks that are not.
func (q *Query) cached(o *handle, mint, maxt int64) (missing []chunk.Range) {
	r := q.r
	rest := q.hold(o, mint, maxt)
	if len(rest) == 0 {
		return nil
	}
	dec := o.decoder()
	for _, b := range o.x.Plan(rest, mint, maxt, -1) { // -1: every block for itself
		if raw, ok := r.blocks.Get(blockKey{o.key, b.Offset, b.Length}); ok {
			q.stats.blockHits.Add(1)
			dec.Put(b.Offset, raw)
			continue
		}
		missing = append(missing, b)
	}
	o.warm = o.raw && len(missing) == 0
	return missing
}

// fetch puts missing blocks into the decoder, by ranges of those that lie close together.
func (q *Query) fetch(ctx context.Context, o *handle, missing []chunk.Range) error {
	r := q.r
	g, gctx := errgroup.WithContext(ctx)
	for _, span := range block.Coalesce(missing, r.cfg.Gap, r.cfg.MaxRange) {
		if err := q.spend(span.Length); err != nil {
			return joined(g, err)
		}
		g.Go(func() error {
			raw, err := r.get(gctx, o.key, span.Offset, span.Length)
			if err != nil {
				return err
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			span.Cut(raw, func(b chunk.Range, part []byte) {
				if len(span.Ranges) > 1 {
					part = bytes.Clone(part) // so that the cache keeps no gaps and evicts one by one
				}
				r.blocks.Put(blockKey{o.key, b.Offset, b.Length}, part, int64(len(part))+blockOverhead)
				o.decoder().Put(b.Offset, part)
			})
			return nil
		})
	}
	return g.Wait()
}

// blockOverhead is about what an entry of the cache takes beside its bytes.
const blockOverhead = 256

// joined waits for what was started; the refusal is the cause.
func joined(g *errgroup.Group, cause error) error {
	_ = g.Wait() // a later error than the cause
	return cause
}
