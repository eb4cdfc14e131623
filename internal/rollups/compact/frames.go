package compact

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/rollups/shards"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// FrameStore is what the removal of raw frames needs of an object store.
type FrameStore = gc.FrameStore

// FrameConfig of a FrameRemover. Pending, Each and Progress may be nil.
type FrameConfig struct {
	Store       FrameStore
	AuthorityID string
	// By names the worker or operator that removes, in the log.
	By  string
	Now func() time.Time
	// Pending reports that a batch that no block has yet may need the frames of the shard's hour; nil reads the
	// progress of all shards, and the journal after it.
	Pending func(id shard.ID, h timegrid.Hour) bool
	// Each calls fn for 0 to n-1, possibly in parallel; nil calls one after the other.
	Each func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error
	// Progress is called after every hour.
	Progress func(h timegrid.Hour, r FrameReport)
}

// FrameRemover removes raw frames of batches that published raw blocks cover, or covered until they expired. The
// identity manifests stay: what was accepted, and its hash, is known for ever. It has no state; two that do the
// same work at once are harmless.
type FrameRemover struct {
	cfg    FrameConfig
	frames *gc.Frames
}

// NewFrameRemover checks the settings; it makes no request.
func NewFrameRemover(c FrameConfig) (*FrameRemover, error) {
	if c.Store == nil || c.AuthorityID == "" || c.By == "" || c.Now == nil {
		return nil, errors.New("compact: store, authority, name and clock are needed")
	}
	if c.Each == nil {
		c.Each = gc.OneByOne
	}
	frames, err := gc.NewFrames(gc.FramesConfig{Store: c.Store, AuthorityID: c.AuthorityID, By: c.By, Clock: clock(c.Now), Each: c.Each})
	if err != nil {
		return nil, fmt.Errorf("compact: %w", err)
	}
	return &FrameRemover{c, frames}, nil
}

// clock is a function as an accept.Clock.
type clock func() time.Time

func (c clock) Now() time.Time { return c() }

// FrameLimits say which frames are old enough.
type FrameLimits struct {
	// Ended: all samples of the batch lie in hours that ended at or before it.
	Ended time.Time
	// Rolled: the store has not changed a record of these hours since then; the zero time does not ask for it.
	Rolled time.Time
}

// FrameReport counts batches, and the bytes of the frames that were removed, or would be.
type FrameReport struct {
	Hours   int    `json:"hours"`
	Batches int    `json:"batches"`
	Frames  int    `json:"frames"` // objects: a blob may have several generations
	Bytes   uint64 `json:"bytes"`
	// Rewritten are notes of frames that duplicates had written again, and that are gone.
	Rewritten int `json:"rewritten"`
	// Kept batches, by reason.
	Kept map[string]int `json:"kept"`
}

// Reasons for keeping a batch of an hour that is old enough.
const (
	KeptUncovered  = "an hour of it is not covered by a committed raw block"
	KeptWide       = "it spans more than two hours"
	KeptInline     = "its identity manifest carries the frame"
	KeptHour       = "the plan or a record of its hour can't be read"
	KeptUnfinished = "a generation of its hour is not decided at all resolutions"
	KeptYoung      = "its hour was published too recently"
	KeptPending    = "a late batch beside it is not rolled up yet"
	KeptRequested  = "a repair request asks to rebuild its hour"
	KeptAside      = "an agent is set aside for its hour"
	KeptRepair     = "the reconciler has a repair record of it"
	KeptConflict   = "another frame was submitted as the same batch"
	KeptChanged    = "its hour was published again meanwhile"
	KeptCondemned  = "the record of its hour's condemned generations can't be read"
)

// isTemporary reports that the reason may be gone in a later pass.
func isTemporary(why string) bool { return why != KeptWide && why != KeptConflict && why != KeptInline }

// runStep bounds the batches of a step of Run.
const runStep = framelog.MaxFrames

// Run checks the batches of all shards whose samples all lie in hours that ended at or before the time, and
// removes the frames of those that FrameHour finds not needed; with dry it only counts them. A repeat continues
// where an earlier run ended.
func (f *FrameRemover) Run(ctx context.Context, before time.Time, dry bool) (FrameReport, error) {
	rep := FrameReport{Kept: map[string]int{}}
	last := LastEnded(before)
	pending := map[shard.ID]map[timegrid.Hour]bool{}
	for next := earliest; next <= last; {
		h, ids, ok, err := f.firstHour(ctx, next, last)
		if err != nil || !ok {
			return rep, err
		}
		for _, id := range ids {
			if f.cfg.Pending == nil && pending[id] == nil {
				if pending[id], err = f.pendingHours(ctx, id); err != nil {
					return rep, err
				}
			}
			if err := f.removeHour(ctx, id, h, before, dry, pending[id], &rep); err != nil {
				return rep, fmt.Errorf("raw frames of %s, shard %s: %w", h, id, err)
			}
		}
		rep.Hours++
		if f.cfg.Progress != nil {
			f.cfg.Progress(h, rep)
		}
		next = h + 1
	}
	return rep, nil
}

// removeHour removes the frames of one hour of a shard, step by step.
func (f *FrameRemover) removeHour(ctx context.Context, id shard.ID, h timegrid.Hour, before time.Time, dry bool, pending map[timegrid.Hour]bool, rep *FrameReport) error {
	x, err := f.Open(ctx, id, h, FrameLimits{Ended: before})
	if err != nil {
		return err
	}
	if f.cfg.Pending == nil {
		x.pending = func(_ shard.ID, h timegrid.Hour) bool { return pending[h] }
	}
	notes, err := f.notesOfHour(ctx, h)
	if err != nil {
		return err
	}
	x.note(notes)
	for done := false; !done; {
		if done, err = x.Step(ctx, runStep, dry, rep); err != nil {
			return err
		}
	}
	if dry {
		return nil
	}
	return x.DeleteNotes(ctx, rep)
}

// LastEnded is the last hour that ended at or before the time.
func LastEnded(t time.Time) timegrid.Hour { return timegrid.HourOf(t.UnixMilli()+1) - 1 }

// earliest hour that is checked: the first of the epoch.
const earliest = timegrid.Hour(0)

// firstHour returns the first hour of from..to that has manifests, and the shards that have them.
func (f *FrameRemover) firstHour(ctx context.Context, from, to timegrid.Hour) (h timegrid.Hour, shards []shard.ID, ok bool, err error) {
	for of, err := range slots(ctx, f.cfg.Store, from, to) {
		if err != nil {
			return h, shards, ok, err
		}
		if ok && of.Name.Hour != h {
			break
		}
		h, ok = of.Name.Hour, true
		if k := len(shards); k == 0 || shards[k-1] != of.Name.Shard {
			shards = append(shards, of.Name.Shard)
		}
	}
	return h, shards, ok, nil
}

// maxPendingHours bounds the hours that are noted of a batch whose samples lie far apart.
const maxPendingHours = 24 * 366

// pendingHours returns the hours of the shard's batches that no block may have yet. A record that can't be read is an
// error, as the frames that are needed are not known.
func (f *FrameRemover) pendingHours(ctx context.Context, id shard.ID) (map[timegrid.Hour]bool, error) {
	n, err := shards.Read(ctx, f.cfg.Store)
	if errors.Is(err, objstore.ErrNotFound) {
		return map[timegrid.Hour]bool{}, nil // there never was a worker
	}
	if err != nil {
		return nil, err
	}
	p, _, err := progress.Read(ctx, f.cfg.Store, f.cfg.AuthorityID, id, n)
	if errors.Is(err, objstore.ErrNotFound) {
		p, err = progress.Progress{AuthorityID: f.cfg.AuthorityID, Shard: id, Shards: n}, nil
	}
	if err != nil {
		return nil, err
	}
	out := map[timegrid.Hour]bool{}
	return out, p.Open(ctx, f.cfg.Store, func(e accepted.Batch) {
		first, last := e.Hours()
		for h := max(first, last-maxPendingHours); h <= last; h++ {
			out[h] = true
		}
		out[first] = true
	})
}

// plan reads the plan of the generation that the records name.
func (f *FrameRemover) plan(ctx context.Context, c *proof) (*rollup.Plan, error) {
	key := layout.RollupPlan(c.hour, c.shard, c.generation)
	p, _, err := record.Read(ctx, f.cfg.Store, key, rollup.PlanKind, func(b []byte) (*rollup.Plan, error) {
		return c.check(key, b, f.cfg.AuthorityID)
	})
	return p, err
}
