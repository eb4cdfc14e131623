package compact

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
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
	next           int    // index of the next input of the plan
	keepsRemovable bool
}

// Open reads what the records of the shard's hour prove.
func (f *FrameRemover) Open(ctx context.Context, id shard.ID, h timegrid.Hour, lim FrameLimits) (*FrameHour, error) {
	c, err := f.prove(ctx, id, h)
	if err != nil {
		return nil, err
	}
	return &FrameHour{f: f, lim: lim, pending: f.cfg.Pending, at: c}, nil
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
// What is removed is logged first, so that every frame that is missing later is in a log. A step that failed or
// was interrupted is repeated by the next.
func (x *FrameHour) Step(ctx context.Context, limit int, dry bool, rep *FrameReport) (done bool, err error) {
	// Requests and late batches can arrive at any time, so this is asked at every step, not once for the hour.
	why := x.at.why
	if why == "" {
		if why, err = x.whyHourIsKept(ctx); err != nil {
			return false, err
		}
	}
	if why != "" {
		n := 1
		if x.at.plan != nil {
			n = len(x.at.plan.Inputs) - x.next
		}
		x.keep(why, n, rep)
		return true, nil
	}
	var of []*accepted.Batch
	next := x.next
	kept := map[string]int{}
	for ; next < len(x.at.plan.Inputs) && len(of) < min(limit, framelog.MaxFrames); next++ {
		e := &x.at.plan.Inputs[next]
		first, last := e.Hours()
		if last != x.at.hour {
			continue // the hour of its last sample removes it
		}
		why, err := x.whyUncovered(ctx, first, e)
		if err != nil {
			return false, err
		}
		if why != "" {
			kept[why]++
			continue
		}
		of = append(of, e)
	}
	if of, err = x.dropNamed(ctx, of, kept); err != nil {
		return false, err
	}
	found := make([]framelog.Frame, len(of))
	err = x.f.cfg.Each(ctx, len(of), func(ctx context.Context, i int) (err error) {
		found[i], err = x.f.frame(ctx, of[i])
		return err
	})
	if err != nil {
		return false, err
	}
	found = slices.DeleteFunc(found, func(r framelog.Frame) bool { return len(r.Keys) == 0 }) // removed by an earlier run
	if err := x.f.remove(ctx, found, x.lim.Ended, dry); err != nil {
		return false, err
	}
	for _, r := range found {
		rep.Batches++
		rep.Frames += len(r.Keys)
		rep.Bytes += r.FrameBytes * uint64(len(r.Keys))
	}
	for why, n := range kept {
		x.keep(why, n, rep)
	}
	// Only now: a step that failed must see the same batches again.
	x.next = next
	return next == len(x.at.plan.Inputs), nil
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

// dropNamed leaves out the batches that a repair record or a conflict names, and counts them in kept.
func (x *FrameHour) dropNamed(ctx context.Context, of []*accepted.Batch, kept map[string]int) ([]*accepted.Batch, error) {
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
		page, err := x.f.cfg.Store.List(ctx, objstore.ListOptions{Prefix: family.prefix})
		if err != nil {
			return nil, err
		}
		named := make([]bool, len(of))
		err = x.f.cfg.Each(ctx, len(of), func(ctx context.Context, i int) error {
			stem, in := family.stem(of[i].Identity), page.Objects
			if page.Next != "" {
				one, err := x.f.cfg.Store.List(ctx, objstore.ListOptions{Prefix: stem, Limit: 1})
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
		var rest []*accepted.Batch
		for i, e := range of {
			if named[i] {
				kept[family.why]++
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

// frame finds all generations of a batch's blob.
func (f *FrameRemover) frame(ctx context.Context, e *accepted.Batch) (framelog.Frame, error) {
	r := framelog.Frame{Identity: e.Identity, FrameSHA256: e.FrameSHA256, FrameBytes: e.FrameBytes}
	for i, err := range objstore.List(ctx, f.cfg.Store, objstore.ListOptions{Prefix: layout.BlobStem(e.FrameSHA256)}) {
		if err != nil {
			return r, err
		}
		if d, _, err := layout.ParseBlob(i.Key); err == nil && d == e.FrameSHA256 {
			r.Keys = append(r.Keys, i.Key)
		}
	}
	return r, nil
}

// remove logs the frames and then deletes them.
func (f *FrameRemover) remove(ctx context.Context, frames []framelog.Frame, before time.Time, dry bool) error {
	if len(frames) == 0 || dry {
		return nil
	}
	l := framelog.Log{AuthorityID: f.cfg.AuthorityID, By: f.cfg.By, Before: before.UnixNano(), RemovedAt: f.cfg.Now().UnixNano(), Frames: frames}
	body, err := l.Marshal()
	if err != nil {
		return err
	}
	// In this order, as a frame that is gone without a log entry would look like a loss.
	if err := create(ctx, f.cfg.Store, l.Key(body), body); err != nil {
		return err
	}
	return f.cfg.Each(ctx, len(frames), func(ctx context.Context, i int) error {
		for _, key := range frames[i].Keys {
			err := f.cfg.Store.Delete(ctx, key)
			if err != nil && !errors.Is(err, objstore.ErrNotFound) {
				return fmt.Errorf("delete %q: %w", key, err)
			}
		}
		return nil
	})
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
