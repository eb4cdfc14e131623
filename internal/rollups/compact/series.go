package compact

import (
	"context"
	"fmt"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
)

// Series gives the series of one set, whose rows may be in a compaction, in no order
// that counts. Errors: those of the store, and ErrNotConserved when rows are missing.
func Series(ctx context.Context, r objstore.Reader, authority string, set *catalog.Set) ([]chunk.Series, error) {
	if set.Into != nil && set.Into.Set == nil {
		c, err := NewLooker(r, authority).records.Compaction(ctx, set.Into.Name)
		if err != nil {
			return nil, err
		}
		into := *set.Into
		into.Set = c
		resolved := *set
		resolved.Into = &into
		set = &resolved
	}
	var out []chunk.Series
	var rows uint64
	d := chunk.NewDecoder(&chunk.Index{}, chunk.Limits{})
	for _, p := range catalog.Pieces([]*catalog.Set{set}) {
		for i := range p.Set.Objects {
			c, err := block.From(r).Open(ctx, p, &p.Set.Objects[i])
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
	if rows != set.Counts.Samples {
		return nil, fmt.Errorf("%w: %d rows of %s, it has %d", ErrNotConserved, rows, set.Name.Key(), set.Counts.Samples)
	}
	return out, nil
}
