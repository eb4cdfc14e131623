package compact

import (
	"context"
	"errors"
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/catalog"
	"lightmetrics.dev/lightmetrics/pkg/framelog"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/intake"
	"lightmetrics.dev/lightmetrics/pkg/layout"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/rollup"
	"lightmetrics.dev/lightmetrics/pkg/window"
)

// FrameLogSchema names the JSON schema of layout.FrameLog.
const FrameLogSchema = framelog.Schema

// FrameStore is what the removal of raw frames needs of an object store.
type FrameStore interface {
	objstore.Reader
	objstore.Creator
	Delete(ctx context.Context, key string) error
}

// FrameConfig of a FrameRemover. All but Progress are required.
type FrameConfig struct {
	Store       FrameStore
	AuthorityID string
	// By names who removes, in the log.
	By  string
	Now func() time.Time
	// Progress is told after every hour; it may be nil.
	Progress func(h window.Hour, r FrameReport)
}

// FrameRemover removes raw frames that published raw sets cover. The identity manifests
// stay: what was accepted, and its hash, is known for ever.
type FrameRemover struct {
	cfg FrameConfig
	cat *catalog.Catalog
}

// NewFrameRemover checks the settings; it makes no request.
func NewFrameRemover(c FrameConfig) (*FrameRemover, error) {
	if c.Store == nil || c.By == "" || c.Now == nil {
		return nil, errors.New("compact: store, name and clock are needed")
	}
	cat, err := catalog.New(catalog.Config{Reader: c.Store, AuthorityID: c.AuthorityID})
	if err != nil {
		return nil, err
	}
	return &FrameRemover{c, cat}, nil
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
	KeptUncovered = "an hour of it is not covered by a committed raw set"
	KeptWide      = "it spans more than two hours"
	KeptHour      = "the plan or a record of its hour can't be read"
)

// Run looks at the batches whose samples all lie in hours that ended at or before the
// time, and removes the frames of those that committed raw sets cover in every hour they
// have samples in; dry only counts them. What is removed is written down first: what a
// log names is gone, or is about to be. A repeat goes on where a former run ended.
func (f *FrameRemover) Run(ctx context.Context, before time.Time, dry bool) (FrameReport, error) {
	rep := FrameReport{Kept: map[string]int{}}
	last := window.HourOf(before.UnixMilli()+1) - 1 // ends at or before
	for next := earliest; next <= last; {
		h, ok, err := f.firstHour(ctx, next, last)
		if err != nil || !ok {
			return rep, err
		}
		if err := f.hour(ctx, h, before, dry, &rep); err != nil {
			return rep, fmt.Errorf("raw frames of %s: %w", h, err)
		}
		rep.Hours++
		if f.cfg.Progress != nil {
			f.cfg.Progress(h, rep)
		}
		next = h + 1
	}
	return rep, nil
}

// earliest hour that is looked at: the epoch's first.
const earliest = window.Hour(0)

// firstHour is the first one from from on that has manifests.
func (f *FrameRemover) firstHour(ctx context.Context, from, to window.Hour) (window.Hour, bool, error) {
	found := window.Hour(0)
	err := listHours(ctx, f.cfg.Store, from, to, func(n catalog.Name, _ objstore.Info) error {
		found = n.Hour
		return errStop
	})
	if errors.Is(err, errStop) {
		return found, true, nil
	}
	return 0, false, err
}

var errStop = errors.New("stop")

// hour looks at the batches whose last samples lie in the hour.
func (f *FrameRemover) hour(ctx context.Context, h window.Hour, before time.Time, dry bool, rep *FrameReport) error {
	v, err := f.cat.Refresh(ctx, h-1, h)
	if err != nil {
		return err
	}
	f.cat.Forget(h, h)
	for _, set := range v.Sets(h, window.Raw) {
		p, err := f.plan(ctx, set)
		if unreadable(err) || errors.Is(err, rollup.ErrPlan) {
			rep.Kept[KeptHour] += int(set.Inputs.Batches())
			continue
		}
		if err != nil {
			return err
		}
		var found []framelog.Frame
		for i := range p.Inputs {
			e := &p.Inputs[i]
			first, last := e.Hours()
			if last != h {
				continue // another hour's
			}
			if why := f.kept(v, e, first, last); why != "" {
				rep.Kept[why]++
				continue
			}
			r, err := f.frame(ctx, e)
			if err != nil {
				return err
			}
			if len(r.Keys) == 0 {
				continue // gone already
			}
			rep.Batches++
			rep.Frames += len(r.Keys)
			rep.Bytes += e.FrameBytes * uint64(len(r.Keys))
			if found = append(found, r); len(found) == framelog.MaxFrames {
				if err := f.remove(ctx, found, before, dry); err != nil {
					return err
				}
				found = nil
			}
		}
		if err := f.remove(ctx, found, before, dry); err != nil {
			return err
		}
	}
	return nil
}

// kept says why the batch stays, "" when it may go.
func (f *FrameRemover) kept(v *catalog.View, e *intake.Entry, first, last window.Hour) string {
	if first < last-1 {
		return KeptWide
	}
	for h := first; h <= last; h++ {
		if len(v.Problems(h)) > 0 {
			return KeptHour
		}
		if !v.Covers(e.Identity(), h, window.Raw) {
			return KeptUncovered
		}
	}
	return ""
}

func (f *FrameRemover) plan(ctx context.Context, set *catalog.Set) (*rollup.Plan, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, _, err := f.cfg.Store.Get(ctx, set.PlanKey, objstore.GetOptions{Limit: rollup.MaxPlanBytes})
	if err != nil {
		return nil, err
	}
	if identity.Sum(body) != set.PlanSHA256 {
		return nil, fmt.Errorf("%w: %q is not the plan of %s", rollup.ErrPlan, set.PlanKey, set.Name.Key())
	}
	return rollup.ParsePlan(body)
}

// frame finds the generations of a batch's blob.
func (f *FrameRemover) frame(ctx context.Context, e *intake.Entry) (framelog.Frame, error) {
	r := framelog.Frame{AgentID: e.AgentID, BootID: e.BootID, SeqStart: e.SeqStart, SeqEnd: e.SeqEnd, SHA256: e.FrameSHA256, Bytes: e.FrameBytes}
	ctx, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	err := objstore.ListAll(ctx, f.cfg.Store, layout.BlobStem(e.FrameSHA256), "", func(i objstore.Info) error {
		if d, _, err := layout.ParseBlob(i.Key); err == nil && d == e.FrameSHA256 {
			r.Keys = append(r.Keys, i.Key)
		}
		return nil
	})
	return r, err
}

// remove writes the frames down, and then deletes them.
func (f *FrameRemover) remove(ctx context.Context, frames []framelog.Frame, before time.Time, dry bool) error {
	if len(frames) == 0 || dry {
		return nil
	}
	l := framelog.Log{AuthorityID: f.cfg.AuthorityID, By: f.cfg.By, Before: before.UnixNano(), RemovedAt: f.cfg.Now().UnixNano(), Frames: frames}
	body, err := l.Marshal()
	if err != nil {
		return err
	}
	if err := create(ctx, f.cfg.Store, l.Key(body), body); err != nil {
		return err
	}
	for _, r := range frames {
		for _, key := range r.Keys {
			dctx, cancel := context.WithTimeout(ctx, recordTimeout)
			err := f.cfg.Store.Delete(dctx, key)
			cancel()
			if err != nil && !errors.Is(err, objstore.ErrNotFound) {
				return err
			}
		}
	}
	return nil
}
