package published

import (
	"bytes"
	"context"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// object is an hour of one chunk of a query, with the series that were selected in it.
type object struct {
	*handle
	hour   timegrid.Hour
	series []int
}

// whole reports that all selected series of the chunk count in the hour.
func (ob *object) whole() bool { return len(ob.series) == len(ob.handle.series) }

// cached gives the handle the cached columns of its series, and the cached blocks of the others. It returns the
// blocks that are missing.
func (q *Query) cached(o *handle, mint, maxt int64) (missing []chunk.Range) {
	r := q.r
	// Series whose decoded columns are cached need no blocks at all.
	rest := q.hold(o, mint, maxt)
	if len(rest) == 0 {
		return nil
	}
	dec := o.decoder()
	for _, b := range o.x.Plan(rest, mint, maxt, -1) { // -1: do not join blocks, fetch does
		if raw, ok := r.blocks.Get(blockKey{o.key, b.Offset, b.Length}); ok {
			q.stats.blockHits.Add(1)
			dec.Put(b.Offset, raw)
			continue
		}
		missing = append(missing, b)
	}
	o.warm = len(missing) == 0
	return missing
}

// fetch reads missing blocks into the decoder, those that are close to each other with one request.
func (q *Query) fetch(ctx context.Context, o *handle, missing []chunk.Range) error {
	r := q.r
	if o.memory != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, b := range missing {
			o.decoder().Put(b.Offset, o.memory.Chunk[b.Offset:b.End()])
		}
		return nil
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, span := range block.Coalesce(missing, r.cfg.Gap, r.cfg.MaxRange) {
		// Here and not in the goroutine: after a limit no further request may begin.
		if err := q.spend(span.Length); err != nil {
			return joined(g, err)
		}
		g.Go(func() error {
			raw, err := r.get(gctx, o.key, span.Offset, span.Length)
			if err != nil {
				return err
			}
			// Requests of one chunk end in any order, and its decoder is for one at a time.
			o.mu.Lock()
			defer o.mu.Unlock()
			span.Cut(raw, func(b chunk.Range, part []byte) {
				if len(span.Ranges) > 1 {
					part = bytes.Clone(part) // else each entry would keep the whole range in memory, and could not be evicted alone
				}
				r.blocks.Put(blockKey{o.key, b.Offset, b.Length}, part, int64(len(part))+blockOverhead)
				o.decoder().Put(b.Offset, part)
			})
			return nil
		})
	}
	return g.Wait()
}

// blockOverhead estimates the memory of a cache entry besides its bytes.
const blockOverhead = 256

// joined waits for the requests that were started, and returns the cause of the refusal.
func joined(g *errgroup.Group, cause error) error {
	_ = g.Wait() // any error of it comes after the cause
	return cause
}
