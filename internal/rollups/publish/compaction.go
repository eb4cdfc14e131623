package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// removeCompaction replaces the manifest of a compaction that no source needs any more by its Removed record. A
// source needs it as long as readers may follow the source to it: while the source is the highest committed
// generation of its slot and redirects here, or does not redirect yet. No other state leads back to one of these,
// so the answer can't become wrong after it was read.
func (x *collection) removeCompaction(ctx context.Context, s *catalog.Block, etag string) (keys []string, wait bool, err error) {
	key := s.Name.Key()
	for _, src := range slices.Backward(s.Sources) {
		needed, err := x.c.needsCompaction(ctx, src, s.Name)
		if record.Opaque(err) {
			needed, err = true, nil // the unreadable source may redirect here
		}
		if err != nil {
			return nil, false, err
		}
		if needed {
			x.log(key, Kept, "in use by "+src.Key())
			return nil, false, nil
		}
	}
	removed := s.Remove(0, x.c.cfg.Clock.Now().UnixNano(), x.c.cfg.WorkerID)
	ok, err := x.c.replaceRecord(ctx, key, etag, removed)
	if err != nil || !ok {
		return nil, true, err
	}
	x.log(key, RemovedBlock, fmt.Sprintf("none of %d sources needs it", len(s.Sources)))
	return removed.Keys, false, nil
}

// needsCompaction reports whether the source may lead readers to the compaction, now or later.
func (c *core) needsCompaction(ctx context.Context, src, compaction catalog.Name) (bool, error) {
	r, _, err := c.record(ctx, src.Key())
	switch {
	case err != nil:
		return false, err
	case r == nil || r.Block == nil:
		return false, nil // the source was removed
	case r.Block.Redirect != nil && r.Block.Redirect.Name != compaction:
		return r.Block.Redirect.YieldsTo(compaction), nil
	}
	by, err := c.superseding(ctx, src)
	return by == 0, err
}

// Compact makes the records of committed blocks redirect to the compaction, which must be committed with these blocks
// among its sources, and says how many of them this call changed: the others redirect there already, or have become
// something else. The objects of all blocks, and compactions to which they redirected before, go on the delayed queue
// first, together. Repeats are harmless.
func (p *Publisher) Compact(ctx context.Context, into catalog.Name, sources ...catalog.Name) (redirected int, err error) {
	for part := range slices.Chunk(sources, replaceAtOnce) {
		// The compaction is committed, so its plan goes with what its sources leave.
		n, err := p.replace(ctx, "compacted", part, []string{layout.BlockPlan(into)}, func(s *catalog.Block) *catalog.Record {
			if !s.Redirect.YieldsTo(into) {
				return nil
			}
			return &catalog.Record{Block: s.Compacted(into, p.cfg.Clock.Now().UnixNano(), p.cfg.WorkerID)}
		})
		if redirected += n; err != nil {
			return redirected, fmt.Errorf("compact into %s: %w", into.Key(), err)
		}
	}
	return redirected, nil
}

// Expire replaces the manifest of a committed block by its Removed record, with its objects on the delayed queue
// first, and says whether this call did it. It refuses compactions: they are removed after their sources.
func (p *Publisher) Expire(ctx context.Context, n catalog.Name) (removed bool, err error) {
	if n.Span > 0 {
		return false, fmt.Errorf("expire %s: %w: it is a compaction", n.Key(), ErrInvalid)
	}
	k, err := p.replace(ctx, "expired", []catalog.Name{n}, nil, func(s *catalog.Block) *catalog.Record {
		return &catalog.Record{Removed: s.Remove(0, p.cfg.Clock.Now().UnixNano(), p.cfg.WorkerID)}
	})
	if err != nil {
		err = fmt.Errorf("expire: %w", err)
	}
	return k > 0, err
}

// Release asks the collector to check whether a compaction is still needed.
func (p *Publisher) Release(ctx context.Context, n catalog.Name) error {
	if n.Span == 0 {
		return fmt.Errorf("release %s: %w: it is no compaction", n.Key(), ErrInvalid)
	}
	return p.push(ctx, "compaction", []string{n.Key()}, 0, p.cfg.Policy.Grace)
}

// Bounds of replacements.
const (
	// replaceAtOnce is how many records are held in memory.
	replaceAtOnce = 256
	// maxReplacements is how often records that others change meanwhile are read again.
	maxReplacements = 4
)

// replacement is a record that is to be written over that of a committed block.
type replacement struct {
	name catalog.Name
	to   *catalog.Record // nil: there is nothing to do
	etag string          // of the record as it was read
	left []string        // what it names, and next does not
	lost bool            // another one was written meanwhile
}

// replace writes other records over those of committed blocks, each conditional on its ETag, and says how many. What they
// leave goes on the queue first, and the keys in with beside it.
func (p *Publisher) replace(ctx context.Context, reason string, names []catalog.Name, with []string, next func(*catalog.Block) *catalog.Record) (replaced int, err error) {
	for try := 0; len(names) > 0; try++ {
		open, err := p.readReplaceable(ctx, names, next)
		if err != nil || len(open) == 0 {
			return replaced, err
		}
		if try == maxReplacements {
			return replaced, fmt.Errorf("%s: %w: the record changes again and again", open[0].name.Key(), ErrUndecided)
		}
		var left []string
		for _, r := range open {
			left = append(left, r.left...)
		}
		left = append(left, with...)
		left = slices.Compact(slices.Sorted(slices.Values(left)))
		// The queue comes first. If the process dies after a replacement, nothing else would remember the
		// objects until a sweep. They are checked after the grace, and kept if they are still in use.
		err = p.push(ctx, reason, left, 0, p.cfg.Policy.Grace)
		p.cfg.Events.queued(reason, len(left), err)
		if err != nil {
			return replaced, err
		}
		if err := p.cfg.each(ctx, len(open), func(ctx context.Context, i int) error { return p.writeReplacement(ctx, &open[i]) }); err != nil {
			return replaced, err
		}
		names = nil
		for _, r := range open {
			if r.lost {
				names = append(names, r.name)
			}
		}
		replaced += len(open) - len(names)
		// Either this call's own writes whose answers were lost, or another worker's: the next reads tell.
		if len(names) > 0 {
			if err := p.cfg.Clock.Sleep(ctx, time.Millisecond); err != nil {
				return replaced, err
			}
		}
	}
	return replaced, nil
}

// readReplaceable reads the records, and gives those that next replaces.
func (p *Publisher) readReplaceable(ctx context.Context, names []catalog.Name, next func(*catalog.Block) *catalog.Record) ([]replacement, error) {
	all := make([]replacement, len(names))
	err := p.cfg.each(ctx, len(names), func(ctx context.Context, i int) error {
		r, info, err := p.record(ctx, names[i].Key())
		switch {
		case err != nil:
			return err
		case r == nil:
			return fmt.Errorf("%s: %w", names[i].Key(), ErrGap)
		case r.Block == nil:
			return nil
		}
		all[i] = replacement{name: names[i], to: next(r.Block), etag: info.ETag, left: r.Block.Keys()}
		if r.Block.Redirect != nil {
			all[i].left = append(all[i].left, r.Block.Redirect.Name.Key())
		}
		return nil
	})
	return slices.DeleteFunc(all, func(r replacement) bool { return r.to == nil }), err
}

// writeReplacement writes the record, unless it is no longer as it was read.
func (p *Publisher) writeReplacement(ctx context.Context, r *replacement) error {
	_, err := p.cfg.Store.Replace(ctx, r.name.Key(), r.to.Marshal(), r.etag, jsonContent)
	if r.lost = errors.Is(err, objstore.ErrPreconditionFailed); r.lost {
		return nil
	}
	return err
}
