package journal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// BarrierStore is what a Barrier needs of the store.
type BarrierStore interface {
	objstore.Getter
	objstore.Lister
}

// Barrier finds out when every run has come to an epoch of condemned names. It is made after the epoch was appended to its log. Once it
// is passed, every answer that is still to come without a marker read, and is not in a durable segment yet, is of a call that was
// compared with this epoch or a later one. What came before had observed its manifest, or its quarantine record, before the barrier was passed:
//
//   - A run that shows a segment which names the epoch can't have an earlier one in a segment that is still to come.
//   - A run that has ended has no further segment.
//   - A run that opened after the listing names only what it read after its segment 0 was durable, so the epoch or a later one.
//   - A run that says in segment 0 that it names no epochs reads markers.
//
// Not for concurrent use.
type Barrier struct {
	store     BarrierStore
	authority string
	epoch     uint64
	listed    bool
	runs      map[RunID]*crossing
}

// crossing is a run that has not passed.
type crossing struct {
	id   RunID
	next uint64 // no segment before it shows anything
}

// NewBarrier makes a barrier; it makes no request.
func NewBarrier(s BarrierStore, authority string, epoch uint64) *Barrier {
	return &Barrier{store: s, authority: authority, epoch: epoch, runs: map[RunID]*crossing{}}
}

// Epoch is the one that runs have to come to.
func (b *Barrier) Epoch() uint64 { return b.epoch }

// Poll asks the runs that have not passed, and returns how many are left. None: the barrier is passed, for good.
func (b *Barrier) Poll(ctx context.Context) (left int, err error) {
	if err := b.list(ctx); err != nil {
		return 0, fmt.Errorf("wait for epoch %d: %w", b.epoch, err)
	}
	if len(b.runs) == 0 {
		return 0, nil
	}
	head, _, err := ReadHead(ctx, b.store)
	if err != nil {
		return 0, fmt.Errorf("wait for epoch %d: %w", b.epoch, err)
	}
	ends := map[RunID]uint64{}
	for _, id := range slices.SortedFunc(maps.Keys(b.runs), RunID.Compare) {
		shown, err := b.read(ctx, &head, b.runs[id])
		switch {
		case err != nil:
			return 0, fmt.Errorf("wait for epoch %d: run %s: %w", b.epoch, id, err)
		case shown == passes:
			delete(b.runs, id)
		case shown == mayHaveEnded:
			ends[id] = b.runs[id].next
		}
	}
	if len(ends) == 0 {
		return len(b.runs), nil
	}
	// A fence counts only if the head, read after it, has not gone beyond it, as for every follower: else it came late, to where a
	// segment was folded and deleted, and the run goes on behind it. A run that has segments, the one that was read before is gone, and
	// no later head names it: it was folded to its end and forgotten, since the head names every other run that was folded.
	if head, _, err = ReadHead(ctx, b.store); err != nil {
		return 0, fmt.Errorf("wait for epoch %d: %w", b.epoch, err)
	}
	for id, at := range ends {
		if h := head.Run(id); h == nil || h.Ended > 0 || h.Folded <= at {
			delete(b.runs, id)
		}
	}
	return len(b.runs), nil
}

// list finds the runs once: whichever opens later names the epoch by itself.
func (b *Barrier) list(ctx context.Context) error {
	if b.listed {
		return nil
	}
	for i, err := range objstore.List(ctx, b.store, objstore.ListOptions{Prefix: layout.JournalOpenPrefix}) {
		if err != nil {
			return err
		}
		if run, n, err := layout.ParseJournalSegment(i.Key); err == nil && n == 0 {
			b.runs[run] = &crossing{id: run}
		}
	}
	// Segment 0 of a run that lasts is folded and deleted. The head, read after the listing, names every such run.
	head, _, err := ReadHead(ctx, b.store)
	if err != nil {
		return err
	}
	for _, h := range head.Runs {
		if h.Ended == 0 && b.runs[h.Run] == nil {
			b.runs[h.Run] = &crossing{id: h.Run}
		}
	}
	b.listed = true
	return nil
}

// shown is what the segments of a run show.
type shown int

const (
	nothing shown = iota
	passes
	mayHaveEnded // at the run's next segment, if the head has not gone beyond it
)

// read looks for a segment that lets the run pass.
func (b *Barrier) read(ctx context.Context, head *Head, r *crossing) (shown, error) {
	h := head.Run(r.id)
	if h != nil {
		if h.Ended > 0 || h.Role != RoleCollector {
			return passes, nil
		}
		r.next = max(r.next, h.Folded)
	}
	for {
		at := Position{r.id, r.next}
		s, err := readSegment(ctx, b.store, at)
		switch {
		// The run has had this segment, or a head has named it: so either it is being folded, which the next head tells, or forgotten.
		case errors.Is(err, objstore.ErrNotFound) && h == nil:
			return mayHaveEnded, nil
		// Nothing is there yet, or it was folded and deleted meanwhile: that shows nothing, and there will be more.
		case errors.Is(err, objstore.ErrNotFound):
			return nothing, nil
		case err != nil:
			return nothing, err
		case s.Position != at:
			return nothing, FileKind.Corrupt(at.Key(), "it is segment %s", s.Position)
		case s.Opening != nil && s.Opening.Authority != b.authority:
			return nothing, FileKind.Corrupt(at.Key(), "it is of the authority %q, ours is %q", s.Opening.Authority, b.authority)
		case s.Fenced:
			return mayHaveEnded, nil
		case s.Closed, !s.Epochs, s.Epoch >= b.epoch:
			return passes, nil
		}
		// The epoch never falls within a run, so the last segment says most.
		last, err := b.last(ctx, at)
		if err != nil || last == r.next {
			return nothing, err
		}
		r.next = last
	}
}

// last finds the last segment of a run that is there, from one that is.
func (b *Barrier) last(ctx context.Context, at Position) (uint64, error) {
	there := func(n uint64) (bool, error) {
		_, _, err := b.store.Get(ctx, Position{at.Run, n}.Key(), objstore.GetOptions{Length: 1})
		if errors.Is(err, objstore.ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	}
	low, step := at.Segment, uint64(1)
	for {
		ok, err := there(low + step)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		low, step = low+step, 2*step
	}
	for step /= 2; step > 0; step /= 2 {
		ok, err := there(low + step)
		if err != nil {
			return 0, err
		}
		if ok {
			low += step
		}
	}
	return low, nil
}
