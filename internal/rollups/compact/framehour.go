package compact

import (
	"context"
	"path"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// FrameHour is the frames of the batches of a shard whose last samples lie in an hour. They are removed step by
// step. It is for one caller at a time.
type FrameHour struct {
	f              *FrameRemover
	lim            FrameLimits
	pending        func(shard.ID, timegrid.Hour) bool
	at             *proof
	before         *proof // of the hour before, read when a batch has samples there
	frames         *gc.HourFrames
	next           int // index of the next input of the plan
	keepsRemovable bool

	// notes are of frames that duplicates wrote again; finished has their batches, and whether Step is done
	// with them; only: no other frames are removed.
	notes    []Rewritten
	finished map[identity.Batch]bool
	only     bool
}

// Open reads what the records of the shard's hour prove.
func (f *FrameRemover) Open(ctx context.Context, id shard.ID, h timegrid.Hour, lim FrameLimits) (*FrameHour, error) {
	c, err := f.prove(ctx, id, h)
	if err != nil {
		return nil, err
	}
	return &FrameHour{f: f, lim: lim, pending: f.cfg.Pending, at: c, frames: f.frames.Hour(h)}, nil
}

// KeepsRemovable reports that frames were kept that a later pass may find removable.
func (x *FrameHour) KeepsRemovable() bool { return x.keepsRemovable }

// Step checks up to limit batches, at most framelog.MaxFrames, and removes the frames of those that are not needed
// any more; with dry it only counts them. A frame is not needed when
//
//   - committed blocks of all resolutions have its batch in every hour in which it has samples, or had it when
//
// they expired;
//   - no late batch of the hour or of its neighbours waits to be rolled up, no repair request asks to rebuild one
//
// of them, and no agent is set aside in one: each of these may read all frames of the hour again;
//   - the reconciler has no repair record of the batch, and no other frame was submitted as the same batch.
//
// All of this is asked first, so that little is condemned that stays, and once more after the frames' generations
// are condemned: that is the proof. What is removed is logged first, so that every frame that is missing later is
// in a log. A step that failed or was interrupted is repeated by the next.
func (x *FrameHour) Step(ctx context.Context, limit int, dry bool, rep *FrameReport) (done bool, err error) {
	// Requests and late batches can arrive at any time, so this is asked at every step, not once for the hour.
	why := x.at.why
	if why == "" {
		if why, err = x.whyHourIsKept(ctx); err != nil {
			return false, err
		}
	}
	if why != "" {
		x.keepRest(why, rep)
		return true, nil
	}
	kept := keptBatches{}
	of, next, err := x.choose(ctx, min(limit, framelog.MaxFrames), kept)
	if err != nil {
		return false, err
	}
	removed, err := x.frames.Remove(ctx, gc.FrameRemoval{
		Batches: of, Below: x.noted(), Before: x.lim.Ended, DryRun: dry,
		Prove: func(ctx context.Context, frames []framelog.Frame) (_ []framelog.Frame, err error) {
			if why, err = x.whyNow(ctx); err != nil || why != "" {
				return nil, err
			}
			return dropNamed(ctx, x.f, frames, func(r framelog.Frame) identity.Batch { return r.Identity }, kept)
		},
	})
	switch {
	case accept.CondemnedHourKind.Is(err):
		why = KeptCondemned
	case err != nil:
		return false, err
	}
	if why != "" {
		x.keepRest(why, rep)
		return true, nil
	}
	for _, r := range removed {
		rep.Batches++
		rep.Frames += len(r.Keys)
		rep.Bytes += r.FrameBytes * uint64(len(r.Keys))
	}
	for why, ids := range kept {
		x.keep(why, len(ids), rep)
	}
	x.finish(of, kept)
	// Only now: a step that failed must see the same batches again.
	x.next = next
	return next == len(x.at.plan.Inputs), nil
}

// keptBatches are batches whose frames are kept, by reason.
type keptBatches map[string][]identity.Batch

// choose takes up to limit batches of the plan that its hours cover and that nothing names, and the index of the
// input behind them.
func (x *FrameHour) choose(ctx context.Context, limit int, kept keptBatches) (of []*accepted.Batch, next int, err error) {
	for next = x.next; next < len(x.at.plan.Inputs) && len(of) < limit; next++ {
		e := &x.at.plan.Inputs[next]
		first, last := e.Hours()
		if last != x.at.hour {
			continue // the hour of its last sample removes it
		}
		if layout.InManifest(e.RawBlobKey) {
			kept[KeptInline] = append(kept[KeptInline], e.Identity)
			continue // nothing removes a manifest
		}
		if _, noted := x.finished[e.Identity]; x.only && !noted {
			continue
		}
		why, err := x.whyUncovered(ctx, first, e)
		if err != nil {
			return nil, next, err
		}
		if why != "" {
			kept[why] = append(kept[why], e.Identity)
			continue
		}
		of = append(of, e)
	}
	of, err = dropNamed(ctx, x.f, of, func(e *accepted.Batch) identity.Batch { return e.Identity }, kept)
	return of, next, err
}

// whyNow asks once more why all frames of the hour may be needed; "" when they are not, and all that Open and Step
// read of the blocks still holds.
func (x *FrameHour) whyNow(ctx context.Context) (string, error) {
	for _, c := range []*proof{x.at, x.before} {
		if c == nil || c.why != "" {
			continue // no frame is removed because of it
		}
		// Not the plan: its key is the generation's, and it is not replaced while that generation counts. A higher one,
		// after which the plan may go and be made again, is seen here.
		again, err := x.f.records(ctx, c.shard, c.hour)
		switch {
		case err != nil:
			return "", err
		case again.why != "":
			return again.why, nil
		case again.generation != c.generation:
			return KeptChanged, nil
		}
	}
	return x.whyHourIsKept(ctx)
}

// keepRest counts the batches that are not checked yet as kept for a reason.
func (x *FrameHour) keepRest(why string, rep *FrameReport) {
	n := 1
	if x.at.plan != nil {
		n = len(x.at.plan.Inputs) - x.next
	}
	x.keep(why, n, rep)
}

// keep counts n batches that are kept for a reason.
func (x *FrameHour) keep(why string, n int, rep *FrameReport) {
	rep.Kept[why] += n
	x.keepsRemovable = x.keepsRemovable || isTemporary(why)
}

// whyUncovered says why the published blocks do not replace the batch's frame; "" when they do.
func (x *FrameHour) whyUncovered(ctx context.Context, first timegrid.Hour, e *accepted.Batch) (string, error) {
	h := x.at.hour
	switch {
	case first < h-1:
		return KeptWide, nil
	case first == h:
		return "", nil // the batch lies in this hour alone, whose plan has it
	}
	if x.before == nil {
		c, err := x.f.prove(ctx, x.at.shard, h-1)
		if err != nil {
			return "", err
		}
		x.before = c
	}
	switch {
	case x.before.why != "":
		return x.before.why, nil
	case x.young(x.before):
		return KeptYoung, nil
	case !x.before.inputs.Covers(e.Identity):
		return KeptUncovered, nil
	}
	return "", nil
}

// young reports that the records of the hour changed too short a time ago.
func (x *FrameHour) young(c *proof) bool {
	return !x.lim.Rolled.IsZero() && c.changed.After(x.lim.Rolled)
}

// whyHourIsKept says why all frames of the hour may still be needed; "" when they are not.
func (x *FrameHour) whyHourIsKept(ctx context.Context) (string, error) {
	h, id := x.at.hour, x.at.shard
	if x.young(x.at) {
		return KeptYoung, nil
	}
	if x.pending != nil {
		for _, at := range []timegrid.Hour{h - 1, h, h + 1} {
			if x.pending(id, at) {
				return KeptPending, nil
			}
		}
	}
	beside := func(prefix string, hour func(key string) (timegrid.Hour, error)) (bool, error) {
		for i, err := range objstore.List(ctx, x.f.cfg.Store, objstore.ListOptions{Prefix: prefix}) {
			if err != nil {
				return false, err
			}
			if at, err := hour(i.Key); err == nil && at >= h-1 && at <= h+1 {
				return true, nil
			}
		}
		return false, nil
	}
	// The folds of deltas may read frames of the hour again.
	for i, err := range objstore.List(ctx, x.f.cfg.Store, objstore.ListOptions{Prefix: layout.RollupDeltas(id)}) {
		if err != nil {
			return "", err
		}
		if n, err := layout.ParseRollupDelta(i.Key); err == nil && n.From <= h+1 && n.To >= h-1 {
			return KeptPending, nil
		}
	}
	found, err := beside(layout.RepairRequests(id), func(key string) (timegrid.Hour, error) {
		at, _, err := layout.ParseRepairRequest(key)
		return at, err
	})
	if found || err != nil {
		return KeptRequested, err
	}
	found, err = beside(layout.RollupAsides(id), func(key string) (timegrid.Hour, error) {
		at, _, _, err := layout.ParseRollupAside(key)
		return at, err
	})
	if found || err != nil {
		return KeptAside, err
	}
	return "", nil
}

// dropNamed leaves out the batches that a repair record or a conflict names, and adds them to kept.
func dropNamed[T any](ctx context.Context, f *FrameRemover, of []T, id func(T) identity.Batch, kept keptBatches) ([]T, error) {
	for _, family := range []struct {
		prefix string
		stem   func(identity.Batch) string
		why    string
	}{
		{layout.RepairPrefix, layout.Repair, KeptRepair},
		{layout.QuarantinePrefix, func(id identity.Batch) string { return path.Dir(layout.Quarantine(id, identity.Digest{})) + "/" }, KeptConflict},
	} {
		if len(of) == 0 {
			return of, nil
		}
		// Usually there are none or few, and then one listing answers for all batches. Only when it has more than
		// a page is each batch asked for.
		page, err := f.cfg.Store.List(ctx, objstore.ListOptions{Prefix: family.prefix})
		if err != nil {
			return nil, err
		}
		named := make([]bool, len(of))
		err = f.cfg.Each(ctx, len(of), func(ctx context.Context, i int) error {
			stem, in := family.stem(id(of[i])), page.Objects
			if page.Next != "" {
				one, err := f.cfg.Store.List(ctx, objstore.ListOptions{Prefix: stem, Limit: 1})
				if err != nil {
					return err
				}
				in = one.Objects
			}
			// Keys ascend, so if any key begins with the stem, the first key that is not less than the stem does.
			k, _ := slices.BinarySearchFunc(in, stem, func(o objstore.Info, s string) int { return compareText(o.Key, s) })
			named[i] = k < len(in) && len(in[k].Key) >= len(stem) && in[k].Key[:len(stem)] == stem
			return nil
		})
		if err != nil {
			return nil, err
		}
		var rest []T
		for i, e := range of {
			if named[i] {
				kept[family.why] = append(kept[family.why], id(e))
				continue
			}
			rest = append(rest, e)
		}
		of = rest
	}
	return of, nil
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// ShardHour is an hour in which a shard has records.
type ShardHour struct {
	Hour timegrid.Hour
	// Changed is when the store last changed one of them.
	Changed time.Time
}

// ShardHours lists some pages of manifests from the cursor on, "" for the first hour from..to, and returns the
// hours that have records of the shard. An hour on the border of two calls is returned by both. next is the cursor
// to continue from, "" at the end.
func (f *FrameRemover) ShardHours(ctx context.Context, id shard.ID, from, to timegrid.Hour, cursor string, pages int) (found []ShardHour, next string, err error) {
	if cursor == "" {
		cursor = layout.BlockManifestsHour(from)
	}
	for range pages {
		page, err := f.cfg.Store.List(ctx, objstore.ListOptions{Prefix: layout.ManifestsPrefix, StartAfter: cursor})
		if err != nil {
			return nil, cursor, err
		}
		for _, i := range page.Objects {
			var n catalog.Name
			if n, err = layout.ParseBlockManifest(i.Key); err != nil {
				continue
			}
			if n.Hour > to {
				return found, "", nil
			}
			if n.Shard != id || n.Span > 0 {
				continue
			}
			if k := len(found) - 1; k < 0 || found[k].Hour != n.Hour {
				found = append(found, ShardHour{n.Hour, i.LastModified})
			} else if i.LastModified.After(found[k].Changed) {
				found[k].Changed = i.LastModified
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	return found, cursor, nil
}
