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

// removeCompaction turns a compaction that no source needs any more into its Removed
// record. A source needs it while it may be what readers follow to it, now or later:
// it is the highest committed generation, and points here or at nothing yet. None of
// the other states leads back.
func (x *collection) removeCompaction(ctx context.Context, s *catalog.Block, etag string) (keys []string, wait bool, err error) {
	key := s.Name.Key()
	for _, src := range slices.Backward(s.Sources) {
		needed, err := x.c.needs(ctx, src, s.Name)
		if record.Opaque(err) {
			needed, err = true, nil // in doubt keep
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
	x.log(key, RemovedSet, fmt.Sprintf("none of %d sources needs it", len(s.Sources)))
	return removed.Keys, false, nil
}

func (c *core) needs(ctx context.Context, src, compaction catalog.Name) (bool, error) {
	r, _, err := c.record(ctx, src.Key())
	switch {
	case err != nil:
		return false, err
	case r == nil || r.Block == nil:
		return false, nil // removed
	case r.Block.Into != nil && r.Block.Into.Name != compaction:
		return r.Block.Into.Earlier(compaction), nil
	}
	by, err := c.superseding(ctx, src)
	return by == 0, err
}

// Changed says what became of a record that was to be turned.
type Changed uint8

// Outcomes of Compact and Expire.
const (
	Turned  Changed = iota // by this call
	Already                // it is what it was to be, or past that
)

// Compact makes the record of a committed set point at the compaction, which must be
// committed with the set among its sources. The set's objects, and a compaction that it
// pointed at before, go on the delayed queue first. Repeats are harmless.
func (p *Publisher) Compact(ctx context.Context, src, into catalog.Name) (Changed, error) {
	ch, err := p.redirect(ctx, src, "compacted", func(s *catalog.Block) *catalog.Record {
		if !s.Into.Earlier(into) {
			return nil
		}
		return &catalog.Record{Block: s.Compacted(into, p.cfg.Clock.Now().UnixNano(), p.cfg.WorkerID)}
	})
	if err != nil {
		err = fmt.Errorf("compact %s into %s: %w", src.Key(), into.Key(), err)
	}
	return ch, err
}

// Expire turns a committed set into its Removed record, with its objects on the delayed
// queue first. Not for compactions: they go when their sources have.
func (p *Publisher) Expire(ctx context.Context, n catalog.Name) (Changed, error) {
	if n.Span > 0 {
		return Already, fmt.Errorf("expire %s: %w: it is a compaction", n.Key(), ErrInvalid)
	}
	ch, err := p.redirect(ctx, n, "expired", func(s *catalog.Block) *catalog.Record {
		return &catalog.Record{Removed: s.Remove(0, p.cfg.Clock.Now().UnixNano(), p.cfg.WorkerID)}
	})
	if err != nil {
		err = fmt.Errorf("expire %s: %w", n.Key(), err)
	}
	return ch, err
}

// Release asks the collector to look whether a compaction is still needed.
func (p *Publisher) Release(ctx context.Context, n catalog.Name) error {
	if n.Span == 0 {
		return fmt.Errorf("release %s: %w: it is no compaction", n.Key(), ErrInvalid)
	}
	return p.push(ctx, "compaction", []string{n.Key()}, 0, p.cfg.Policy.Grace)
}

// maxTurns bounds how often a record that others change meanwhile is read again.
const maxTurns = 4

// turn writes another record over a committed set's, by its ETag.
func (p *Publisher) redirect(ctx context.Context, n catalog.Name, reason string, next func(*catalog.Block) *catalog.Record) (Changed, error) {
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
		if try == maxTurns {
			return Already, fmt.Errorf("%w: the record changes again and again", ErrUndecided)
		}
		// First what is to follow: it is looked at after the grace, and kept if it is in use.
		left := r.Block.Keys()
		if r.Block.Into != nil {
			left = append(left, r.Block.Into.Name.Key())
		}
		err = p.push(ctx, reason, left, 0, p.cfg.Policy.Grace)
		p.cfg.Events.queued(reason, len(left), err)
		if err != nil {
			return Already, err
		}
		body := to.Marshal()
		_, err = p.cfg.Store.Replace(ctx, n.Key(), body, info.ETag, jsonContent)
		if err == nil {
			return Turned, nil
		}
		if !errors.Is(err, objstore.ErrPreconditionFailed) {
			return Already, err
		}
		// Ours after a lost answer, or another's: look again.
		if err := p.cfg.Clock.Sleep(ctx, time.Millisecond); err != nil {
			return Already, err
		}
	}
}
