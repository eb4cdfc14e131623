package rollup

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/block"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/compact"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
)

// errNotExtendable: the former generation does not help, all frames are to be read.
var errNotExtendable = errors.New("not extendable")

// extend makes a part of the plan's raw series of the former raw generation and the frames
// that are new: what reading all frames gives, to the bit. errNotExtendable where that can't be.
func (s *Service) extend(ctx context.Context, p *planned, before *catalog.Block, part rollup.Part) ([]chunk.Series, rollup.Counts, error) {
	none := rollup.Counts{}
	if before == nil || before.Name.Generation >= p.Generation {
		return nil, none, errNotExtendable
	}
	var fresh []accepted.Batch
	var freshIn, oldIn []accepted.Claim
	for i, in := range p.Order() {
		if before.Inputs.Covers(in.Identity) {
			oldIn = append(oldIn, in)
		} else {
			fresh, freshIn = append(fresh, p.Inputs[i]), append(freshIn, in)
		}
	}
	if uint64(len(oldIn)) != before.Inputs.Batches() || 2*len(fresh) > len(oldIn) || !rollup.Extendable(oldIn, freshIn) {
		return nil, none, errNotExtendable
	}
	b := rollup.NewBuilder(p.Hour, freshIn, part)
	b.Limit(int64(s.cfg.Jobs.Memory))
	if err := s.read(ctx, b, fresh); err != nil {
		return nil, none, err
	}
	cost := b.Bytes()
	more, counts, err := b.Finish()
	if err != nil {
		return nil, none, err
	}
	old, err := s.series(ctx, before, part, cost)
	if err != nil && ctx.Err() == nil && !errors.Is(err, rollup.ErrTooLarge) {
		s.log.Info("the former generation can't be read; all frames are", "set", before.Name.Key(), "error", err)
		return nil, none, errNotExtendable
	}
	if err != nil {
		return nil, none, err
	}
	raw, ok := rollup.Extend(old, more)
	if !ok {
		return nil, none, errNotExtendable
	}
	if part.Index > 0 {
		return raw, counts, nil // those of the former generation count once
	}
	c := before.Counts
	counts.Add(rollup.Counts{Inputs: c.Records, Published: c.Published, OtherHours: c.OtherHours, Overlapped: c.Overlapped, Duplicates: c.Duplicates})
	return raw, counts, nil
}

// series reads the raw series of a set that are in the part, in the order of rollup.Builder.
// cost is taken already of what a job may take: *rollup.TooLargeError beyond that.
func (s *Service) series(ctx context.Context, of *catalog.Block, part rollup.Part, cost int64) ([]chunk.Series, error) {
	if of.Into != nil {
		out, err := compact.Series(ctx, s.store, s.cfg.AuthorityID, of)
		out = slices.DeleteFunc(out, func(one chunk.Series) bool { return !part.Holds(&one) })
		rollup.SortSeries(out)
		return out, err
	}
	var out []chunk.Series
	fetch := block.From(s.store)
	for i := range of.Objects {
		o := &of.Objects[i]
		body, err := fetch.Chunk(ctx, o)
		if err != nil {
			return nil, err
		}
		x, err := fetch.Index(ctx, o, chunk.Limits{})
		if err != nil {
			return nil, err
		}
		d := chunk.NewDecoder(x, chunk.Limits{})
		d.Put(0, body)
		for i := range x.Len() {
			ref := x.Series(i)
			one := chunk.Series{ID: ref.ID}
			if !part.Holds(&one) {
				continue
			}
			if _, err := d.Series(i, ref.MinT, ref.MaxT, chunk.AllColumns, &one.Columns); err != nil {
				return nil, fmt.Errorf("read %q: %w", o.ChunkKey, err)
			}
			out = append(out, one)
			if cost += rollup.Cost(1, uint64(one.Rows()), rollup.KeyBytes(&one)); cost > int64(s.cfg.Jobs.Memory) {
				return nil, &rollup.TooLargeError{Limit: int64(s.cfg.Jobs.Memory), Parts: part.Of}
			}
		}
	}
	rollup.SortSeries(out)
	return out, nil
}
