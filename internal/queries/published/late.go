package published

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/rollups/chunk"
	"lightmetrics.dev/lightmetrics/internal/rollups/delta"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Late batches are in deltas until a block has them. Their records of an hour are made into a block in memory, so
// that everything that reads blocks reads these as well.

// late is what deltas have of a shard's hour, as a query reads it.
type late struct {
	block *catalog.Block
	ids   []identity.Batch
}

// pinLate reads the deltas that have batches of hours which were just pinned. What can't be read is a Problem, and
// covers nothing. The caller holds q.mu.
func (q *Query) pinLate(ctx context.Context, v *catalog.View, hours []timegrid.Hour) error {
	var all []catalog.Late
	for _, h := range hours {
		all = append(all, v.Late(h)...)
	}
	if len(all) == 0 {
		return nil
	}
	frames, err := q.lateFrames(ctx, v, all)
	if err != nil {
		return err
	}
	for _, l := range all {
		one, err := q.r.lateOf(v, l, q.shards, frames)
		if err != nil {
			q.problem(Problem{Hour: l.Hour, Key: l.Batches[0].Delta.Key(), Err: err})
			continue
		}
		if one != nil {
			if q.late == nil {
				q.late = map[timegrid.Hour][]*late{}
			}
			q.late[l.Hour] = append(q.late[l.Hour], one)
		}
	}
	return nil
}

// lateFrames reads, in parallel, the deltas that have the batches. Those of a delta that can't be read are missing
// in the result.
func (q *Query) lateFrames(ctx context.Context, v *catalog.View, all []catalog.Late) (map[identity.Batch][]byte, error) {
	var order []*delta.Delta
	hours := map[*delta.Delta][]timegrid.Hour{}
	for _, l := range all {
		for _, b := range l.Batches {
			if hours[b.Delta] == nil {
				order = append(order, b.Delta)
			}
			if hs := hours[b.Delta]; len(hs) == 0 || hs[len(hs)-1] != l.Hour {
				hours[b.Delta] = append(hs, l.Hour)
			}
		}
	}
	read := make([][][]byte, len(order))
	failed := make([]error, len(order))
	g, gctx := errgroup.WithContext(ctx)
	for i, d := range order {
		if err := q.spend(d.Size()); err != nil {
			return nil, joined(g, err)
		}
		g.Go(func() error {
			read[i], failed[i] = q.r.readDelta(gctx, d)
			return nil
		})
	}
	_ = g.Wait() // errors are in failed
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := map[identity.Batch][]byte{}
	for i, d := range order {
		if failed[i] != nil {
			for _, h := range hours[d] {
				q.objectFailed(h, d.Key(), failed[i])
			}
			continue
		}
		for k := range d.Batches {
			out[d.Batches[k].Identity] = read[i][k]
		}
	}
	return out, nil
}

// readDelta reads the frames of a delta, or takes them from the cache.
func (r *Reader) readDelta(ctx context.Context, d *delta.Delta) ([][]byte, error) {
	if frames, ok := r.deltas.Get(d.Key()); ok {
		return frames, nil
	}
	if err := r.slots.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	defer r.slots.Release(1)
	frames, err := d.ReadFrames(ctx, r.cfg.Store)
	if err == nil {
		r.deltas.Put(d.Key(), frames, d.Size()+blockOverhead)
	}
	return frames, err
}

// lateOf makes the block of what deltas have of a shard's hour; nil when no frame of it could be read.
func (r *Reader) lateOf(v *catalog.View, l catalog.Late, shards uint32, frames map[identity.Batch][]byte) (*late, error) {
	published := v.Block(l.Hour, l.Shard, timegrid.Raw)
	out := &late{}
	var claims []accepted.Claim
	// The name says everything that the rows are a function of, so that queries share what one of them made.
	name := fmt.Appendf(nil, "%s %s", l.Hour, l.Shard)
	for _, b := range l.Batches {
		if frames[b.Identity] == nil {
			continue
		}
		out.ids = append(out.ids, b.Identity)
		claims = append(claims, b.Claim())
		name = fmt.Appendf(name, " %q %q %d %d %d", b.Agent, b.Boot, b.SeqStart, b.SeqEnd, b.AcceptedAt)
	}
	if len(claims) == 0 {
		return nil, nil
	}
	lost := make([][]ledger.Range, len(claims))
	for i, c := range claims {
		lost[i] = intersecting(published, c.Identity)
		name = fmt.Append(name, lost[i])
	}
	key := "late/" + identity.Sum(name).String()
	if b, ok := r.lates.Get(key); ok {
		out.block = b
		return out, nil
	}
	ss, err := lateRows(l.Hour, claims, lost, frames)
	if err != nil {
		return nil, err
	}
	if out.block, err = encodeLate(key, l, shards, ss); err != nil {
		return nil, err
	}
	size := int64(len(name)) + blockOverhead
	for _, o := range out.block.Objects {
		size += int64(o.ChunkBytes + o.IndexBytes)
	}
	r.lates.Put(key, out.block, size)
	return out, nil
}

// intersecting are the sequence numbers of a batch that inputs of the block have: they count there, whoever wins
// them in the next generation.
func intersecting(of *catalog.Block, id identity.Batch) (out []ledger.Range) {
	if of == nil {
		return nil
	}
	own := ledger.Range{Start: id.SeqStart, End: id.SeqEnd}
	for _, r := range rangesOf(of, id.BootOf()) {
		if c, ok := own.Intersect(r); ok {
			out = append(out, c)
		}
	}
	return out
}

// lateRows are the raw series of an hour that frames have, without the records of lost numbers.
func lateRows(h timegrid.Hour, claims []accepted.Claim, lost [][]ledger.Range, frames map[identity.Batch][]byte) ([]chunk.Series, error) {
	b := rollup.NewBuilder(h, claims, rollup.Part{})
	dec, f := frame.NewDecoder(), frame.Batch{}
	for i, c := range claims {
		b.Lose(i, lost[i])
		if err := dec.Decode(frames[c.Identity], &f, frame.Limits{}); err != nil {
			return nil, fmt.Errorf("frame of %s: %w", c.Identity, err)
		}
		if err := b.Add(i, &f); err != nil {
			return nil, err
		}
	}
	// Records that are lost to a block or lie in other hours are counted too, so nothing gets lost on the way.
	ss, _, err := b.Finish()
	return ss, err
}

// encodeLate makes a block in memory of series. It has no generation: it is older than any.
func encodeLate(key string, l catalog.Late, shards uint32, ss []chunk.Series) (*catalog.Block, error) {
	out := &catalog.Block{Name: catalog.Name{Hour: l.Hour, Shard: l.Shard, Resolution: timegrid.Raw}, Shards: shards}
	if len(ss) == 0 {
		return out, nil
	}
	w := chunk.NewWriter(chunk.Options{})
	for i := range ss {
		if err := w.Add(&ss[i]); err != nil {
			return nil, err
		}
	}
	files, err := w.Finish()
	if err != nil {
		return nil, err
	}
	m := &catalog.Memory{Chunk: bytes.Clone(files.Chunk), Index: bytes.Clone(files.Index)}
	out.Counts.Series, out.Counts.Samples = uint64(files.Series), files.Samples
	out.Objects = []catalog.Object{{
		Metric: layout.MixedMetrics, ChunkKey: key, ChunkBytes: uint64(len(m.Chunk)), ChunkSHA256: files.ID, FooterOffset: uint64(files.FooterOffset),
		IndexKey: key + "/index", IndexBytes: uint64(len(m.Index)), IndexSHA256: files.IndexID,
		Series: uint64(files.Series), Samples: files.Samples, MinTime: files.MinT, MaxTime: files.MaxT, Memory: m,
	}}
	return out, nil
}

// lateBlocks are the blocks in memory of an hour.
func (q *Query) lateBlocks(h timegrid.Hour) (out []*catalog.Block) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.late[h] {
		if len(l.block.Objects) > 0 {
			out = append(out, l.block)
		}
	}
	return out
}

// lateRanges are the sequence numbers of a boot that count in deltas of the hour.
func (q *Query) lateRanges(boot identity.Boot, h timegrid.Hour) (out []ledger.Range) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := shard.Of(boot.Agent, q.shards)
	for _, l := range q.late[h] {
		if l.block.Name.Shard != id {
			continue
		}
		for _, b := range l.ids {
			if b.BootOf() == boot {
				out = append(out, ledger.Range{Start: b.SeqStart, End: b.SeqEnd})
			}
		}
	}
	return out
}

// joinRanges is the union of ranges in any order, ascending and disjoint.
func joinRanges(of []ledger.Range) (out []ledger.Range) {
	slices.SortFunc(of, func(a, b ledger.Range) int {
		if a.Start != b.Start {
			if a.Start < b.Start {
				return -1
			}
			return 1
		}
		return 0
	})
	for _, r := range of {
		if n := len(out); n > 0 && (r.Start <= out[n-1].End || r.Start == out[n-1].End+1) {
			out[n-1].End = max(out[n-1].End, r.End)
			continue
		}
		out = append(out, r)
	}
	return out
}

// HasLate reports that deltas have batches of the hour that no block has. The hour must have been pinned.
func (q *Query) HasLate(h timegrid.Hour) bool { return len(q.view(h).Late(h)) > 0 }

// LateRows gives the first pinned hour whose samples have expired, and of which deltas have batches that its rolled
// rows lack.
func (q *Query) LateRows() (first timegrid.Hour, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for h, v := range q.hours {
		if (!ok || h < first) && v.LateRows(h) {
			first, ok = h, true
		}
	}
	return first, ok
}
