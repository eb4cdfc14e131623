package compact

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Rewritten is the note of a frame that a duplicate wrote again after retention had condemned the earlier
// generations of its hour.
type Rewritten struct {
	Hour       timegrid.Hour
	Identity   identity.Batch
	Generation uint32
}

// Notes reads up to limit notes of rewritten frames behind the key after, of hours up to last, of which mine is
// true. next is where to continue, "" at the end.
func (f *FrameRemover) Notes(ctx context.Context, after string, last timegrid.Hour, limit int, mine func(agent string) bool) (notes []Rewritten, next string, err error) {
	for i, err := range objstore.List(ctx, f.cfg.Store, objstore.ListOptions{Prefix: layout.RewrittenPrefix, StartAfter: after}) {
		if err != nil {
			return nil, "", err
		}
		h, id, gen, err := layout.ParseRewritten(i.Key)
		if err == nil && h > last {
			break
		}
		if err != nil || !mine(id.Agent) {
			continue
		}
		if notes = append(notes, Rewritten{h, id, gen}); len(notes) == limit {
			return notes, i.Key, nil
		}
	}
	return notes, "", nil
}

// notesOfHour reads the notes of all shards of one hour.
func (f *FrameRemover) notesOfHour(ctx context.Context, h timegrid.Hour) (notes []Rewritten, err error) {
	notes, _, err = f.Notes(ctx, layout.RewrittenHour(h), h, maxNotes, func(string) bool { return true })
	return notes, err
}

// maxNotes bounds the notes of an hour that one run reads; a repeat finds the rest.
const maxNotes = 100_000

// Only restricts the hour to the frames that the notes name.
func (x *FrameHour) Only(notes []Rewritten) {
	x.note(notes)
	x.only = true
}

func (x *FrameHour) note(notes []Rewritten) {
	x.notes, x.finished = notes, map[identity.Batch]bool{}
	for _, n := range notes {
		x.finished[n.Identity] = false
	}
}

// noted is the lowest generation above all that the notes name. A collector that has written its note may not have
// written the frame yet; so the generation is condemned also where no frame is found, or it would be relied on when
// its note is gone.
func (x *FrameHour) noted() (below uint32) {
	for _, n := range x.notes {
		below = max(below, n.Generation+1)
	}
	return below
}

// finish remembers for which batches no frame is left, or stays for good.
func (x *FrameHour) finish(of []*accepted.Batch, kept keptBatches) {
	set := func(id identity.Batch, done bool) {
		if _, noted := x.finished[id]; noted {
			x.finished[id] = done
		}
	}
	for _, e := range of {
		set(e.Identity, true)
	}
	for why, ids := range kept {
		for _, id := range ids {
			set(id, !isTemporary(why))
		}
	}
}

// DeleteNotes deletes the notes of the frames that Step has finished with. A note whose batch is not covered yet, or
// whose frame is needed for some time, stays for a later pass.
func (x *FrameHour) DeleteNotes(ctx context.Context, rep *FrameReport) error {
	done := slices.DeleteFunc(slices.Clone(x.notes), func(n Rewritten) bool { return !x.finished[n.Identity] })
	rep.Rewritten += len(done)
	return x.f.cfg.Each(ctx, len(done), func(ctx context.Context, i int) error {
		key := layout.Rewritten(done[i].Hour, done[i].Identity, done[i].Generation)
		if err := x.f.cfg.Store.Delete(ctx, key); err != nil && !errors.Is(err, objstore.ErrNotFound) {
			return fmt.Errorf("delete %q: %w", key, err)
		}
		return nil
	})
}
