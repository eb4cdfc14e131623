package compact

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

// Series returns the series of one block, whose rows may be in a compaction, in no particular order. Errors: those
// of the store, and ErrNotConserved when rows are missing.
func Series(ctx context.Context, r objstore.Reader, authority string, of *catalog.Block) ([]chunk.Series, error) {
	if of.Redirect != nil && of.Redirect.Block == nil {
		c, err := NewScanner(r, authority).records.Compaction(ctx, of.Redirect.Name)
		if err != nil {
			return nil, err
		}
		// Copies, since the caller's block may be shared with a cache.
		into := *of.Redirect
		into.Block = c
		resolved := *of
		resolved.Redirect = &into
		of = &resolved
	}
	var out []chunk.Series
	var rows uint64
	d := chunk.NewDecoder(&chunk.Index{}, chunk.Limits{})
	for _, p := range catalog.Pieces([]*catalog.Block{of}) {
		for i := range p.Block.Objects {
			c, err := block.From(r).Open(ctx, p, &p.Block.Objects[i])
			if err != nil {
				return nil, err
			}
			if err := c.Load(ctx, d, c.Series()); err != nil {
				return nil, err
			}
			for _, k := range c.Series() {
				rs, err := c.Rows(d, k)
				if err != nil {
					return nil, err
				}
				if rs.From == rs.To {
					continue
				}
				ref := c.Ref(k)
				s := chunk.Series{ID: ref.ID, Columns: rs.Cut(rs.From, rs.To)}
				rows += uint64(s.Rows())
				out = append(out, s)
			}
		}
	}
	if rows != of.Counts.Samples {
		return nil, fmt.Errorf("%w: %d rows of %s, it has %d", ErrNotConserved, rows, of.Name.Key(), of.Counts.Samples)
	}
	return out, nil
}
