package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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

// Changed says what became of a record that was to be replaced.
type Changed uint8

// Outcomes of Compact and Expire.
const (
	Replaced Changed = iota // by this call
	Already                 // the record is already what it was to become, or past that
)

// Compact makes the record of a committed block redirect to the compaction, which must be committed with the block
// among its sources. The block's objects, and a compaction to which it redirected before, go on the delayed queue
// first. Repeats are harmless.
func (p *Publisher) Compact(ctx context.Context, src, into catalog.Name) (Changed, error) {
	ch, err := p.replace(ctx, src, "compacted", func(s *catalog.Block) *catalog.Record {
		if !s.Redirect.YieldsTo(into) {
			return nil
		}
		return &catalog.Record{Block: s.Compacted(into, p.cfg.Clock.Now().UnixNano(), p.cfg.WorkerID)}
	})
	if err != nil {
		err = fmt.Errorf("compact %s into %s: %w", src.Key(), into.Key(), err)
	}
	return ch, err
}

// Expire replaces the manifest of a committed block by its Removed record, with its objects on the delayed queue
// first. It refuses compactions: they are removed after their sources.
func (p *Publisher) Expire(ctx context.Context, n catalog.Name) (Changed, error) {
	if n.Span > 0 {
		return Already, fmt.Errorf("expire %s: %w: it is a compaction", n.Key(), ErrInvalid)
	}
	ch, err := p.replace(ctx, n, "expired", func(s *catalog.Block) *catalog.Record {
		return &catalog.Record{Removed: s.Remove(0, p.cfg.Clock.Now().UnixNano(), p.cfg.WorkerID)}
	})
	if err != nil {
		err = fmt.Errorf("expire %s: %w", n.Key(), err)
	}
	return ch, err
}

// Release asks the collector to check whether a compaction is still needed.
func (p *Publisher) Release(ctx context.Context, n catalog.Name) error {
	if n.Span == 0 {
		return fmt.Errorf("release %s: %w: it is no compaction", n.Key(), ErrInvalid)
	}
	return p.push(ctx, "compaction", []string{n.Key()}, 0, p.cfg.Policy.Grace)
}

// maxReplacements bounds how often a record that others change meanwhile is read again.
const maxReplacements = 4

// replace writes another record over that of a committed block, conditional on its ETag.
func (p *Publisher) replace(ctx context.Context, n catalog.Name, reason string, next func(*catalog.Block) *catalog.Record) (Changed, error) {
	for try := 0; ; try++ {
		r, info, err := p.record(ctx, n.Key())
		switch {
		case err != nil:
			return Already, err
		case r == nil:
			return Already, ErrGap
		case r.Block == nil:
			return Already, nil
		}
		to := next(r.Block)
		if to == nil {
			return Already, nil
		}
		if try == maxReplacements {
			return Already, fmt.Errorf("%w: the record changes again and again", ErrUndecided)
		}
		// The queue comes first. If the process dies after the replacement, nothing else would remember the
		// objects until a sweep. They are checked after the grace, and kept if they are still in use.
		left := r.Block.Keys()
		if r.Block.Redirect != nil {
			left = append(left, r.Block.Redirect.Name.Key())
		}
		err = p.push(ctx, reason, left, 0, p.cfg.Policy.Grace)
		p.cfg.Events.queued(reason, len(left), err)
		if err != nil {
			return Already, err
		}
		body := to.Marshal()
		_, err = p.cfg.Store.Replace(ctx, n.Key(), body, info.ETag, jsonContent)
		if err == nil {
			return Replaced, nil
		}
		if !errors.Is(err, objstore.ErrPreconditionFailed) {
			return Already, err
		}
		// Either this call's own write whose answer was lost, or another worker's: the next read tells.
		if err := p.cfg.Clock.Sleep(ctx, time.Millisecond); err != nil {
			return Already, err
		}
	}
}
