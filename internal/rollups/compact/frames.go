package compact

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/derived/intake"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// FrameStore is what the removal of raw frames needs of an object store.
type FrameStore interface {
	objstore.Reader
	objstore.Creator
	objstore.Deleter
}

// FrameConfig of a FrameRemover. Pending, Each and Progress may be nil.
type FrameConfig struct {
	Store       FrameStore
	AuthorityID string
	// By names who removes, in the log.
	By  string
	Now func() time.Time
	// Pending reports that a batch which no block has yet may need the frames of the
	// shard's hour; nil reads the shard's intake.
	Pending func(id shard.ID, h timegrid.Hour) bool
	// Each calls fn for 0 to n-1, some at once where it likes; nil is one after the other.
	Each func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error
	// Progress is told after every hour.
	Progress func(h timegrid.Hour, r FrameReport)
}

// FrameRemover removes raw frames that published raw sets cover, or covered until they
// expired. The identity manifests stay: what was accepted, and its hash, is known for ever.
// It has no state; two that do the same at once are harmless.
type FrameRemover struct{ cfg FrameConfig }

// NewFrameRemover checks the settings; it makes no request.
func NewFrameRemover(c FrameConfig) (*FrameRemover, error) {
	if c.Store == nil || c.AuthorityID == "" || c.By == "" || c.Now == nil {
		return nil, errors.New("compact: store, authority, name and clock are needed")
	}
	if c.Each == nil {
		c.Each = func(ctx context.Context, n int, fn func(context.Context, int) error) error {
			for i := range n {
				if err := fn(ctx, i); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return &FrameRemover{c}, nil
}

// FrameLimits say which frames are old enough.
type FrameLimits struct {
	// Ended: all samples lie in hours that ended at or before it.
	Ended time.Time
	// Rolled: the store has not changed a record of these hours since; the zero time asks for nothing.
	Rolled time.Time
}

// FrameReport counts batches, and the bytes of the frames that are removed, or would be.
type FrameReport struct {
	Hours   int    `json:"hours"`
	Batches int    `json:"batches"`
	Frames  int    `json:"frames"` // objects: a blob may have several generations
	Bytes   uint64 `json:"bytes"`
	// Kept batches, by reason.
	Kept map[string]int `json:"kept"`
}

// Reasons why a batch of an hour before the time is kept.
const (
	KeptUncovered  = "an hour of it is not covered by a committed raw set"
	KeptWide       = "it spans more than two hours"
	KeptHour       = "the plan or a record of its hour can't be read"
	KeptUnfinished = "a generation of its hour is not decided at all resolutions"
	KeptYoung      = "its hour was published too short a time ago"
	KeptPending    = "a late batch beside it is not rolled up yet"
	KeptOrdered    = "its hour is ordered to be made anew"
	KeptAside      = "an agent is set aside for its hour"
	KeptRepair     = "the reconciler has a repair record of it"
	KeptConflict   = "another frame was submitted as the same batch"
)

// passes reports that a later look may find the batch removable.
func passes(why string) bool { return why != KeptWide && why != KeptConflict }

// stepOfRun bounds the batches of a step where nobody waits.
const stepOfRun = framelog.MaxFrames

// Run looks at the batches of all shards whose samples all lie in hours that ended at or
// before the time, and removes the frames of those that FrameHour finds not to be needed;
// dry only counts them. A repeat goes on where a former run ended.
func (f *FrameRemover) Run(ctx context.Context, before time.Time, dry bool) (FrameReport, error) {
	rep := FrameReport{Kept: map[string]int{}}
	last := LastEnded(before)
	pending := map[shard.ID]map[timegrid.Hour]bool{}
	for next := earliest; next <= last; {
		h, shards, ok, err := f.firstHour(ctx, next, last)
		if err != nil || !ok {
			return rep, err
		}
		for _, id := range shards {
			if f.cfg.Pending == nil && pending[id] == nil {
				if pending[id], err = f.pendingHours(ctx, id); err != nil {
					return rep, err
				}
			}
			if err := f.hour(ctx, id, h, before, dry, pending[id], &rep); err != nil {
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

func (f *FrameRemover) hour(ctx context.Context, id shard.ID, h timegrid.Hour, before time.Time, dry bool, pending map[timegrid.Hour]bool, rep *FrameReport) error {
	x, err := f.Open(ctx, id, h, FrameLimits{Ended: before})
	if err != nil {
		return err
	}
	if f.cfg.Pending == nil {
		x.pending = func(_ shard.ID, h timegrid.Hour) bool { return pending[h] }
	}
	for done := false; !done; {
		if done, err = x.Step(ctx, stepOfRun, dry, rep); err != nil {
			return err
		}
	}
	return nil
}

// LastEnded is the last hour that ended at or before the time.
func LastEnded(t time.Time) timegrid.Hour { return timegrid.HourOf(t.UnixMilli()+1) - 1 }

// earliest hour that is looked at: the epoch's first.
const earliest = timegrid.Hour(0)

// firstHour is the first one from from on that has manifests, and the shards that have.
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

// maxPendingHours bounds what is noted of a batch whose samples lie far apart.
const maxPendingHours = 24 * 366

// pendingHours are the hours of the batches in the shard's intake: some set lacks a batch
// of each segment that is there. A segment that can't be read is an error: nobody knows
// which frames it needs.
func (f *FrameRemover) pendingHours(ctx context.Context, id shard.ID) (map[timegrid.Hour]bool, error) {
	out := map[timegrid.Hour]bool{}
	_, err := intake.NewReader(f.cfg.Store, id).Poll(ctx, 0, func(key string) error {
		seg, err := intake.ReadSegment(ctx, f.cfg.Store, key)
		if errors.Is(err, objstore.ErrNotFound) {
			return nil // spent meanwhile
		}
		if err != nil {
			return fmt.Errorf("read %q: %w", key, err)
		}
		for _, e := range seg.Entries {
			first, last := e.Hours()
			for h := max(first, last-maxPendingHours); h <= last; h++ {
				out[h] = true
			}
			out[first] = true
		}
		return nil
	})
	return out, err
}

// plan reads the plan of the generation that the records name.
func (f *FrameRemover) plan(ctx context.Context, c *cover) (*rollup.Plan, error) {
	key := layout.RollupPlan(c.hour, c.shard, c.generation)
	p, _, err := record.Read(ctx, f.cfg.Store, key, rollup.PlanKind, func(b []byte) (*rollup.Plan, error) {
		return c.check(key, b, f.cfg.AuthorityID)
	})
	return p, err
}
