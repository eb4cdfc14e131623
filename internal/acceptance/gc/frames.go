package gc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// FrameStore is what the removal of raw frames needs of an object store: beside what the
// collection of orphans needs, replacements of the record of an hour's condemned generations.
type FrameStore interface {
	Store
	objstore.Replacer
}

// FramesConfig of a Frames. All but Each are required.
type FramesConfig struct {
	Store       FrameStore
	AuthorityID string
	// By names the worker or operator that removes, in the records.
	By string
	// Clock stamps records. No decision depends on it.
	Clock accept.Clock
	// Each calls fn for 0 to n-1, possibly in parallel; nil calls one after the other.
	Each func(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error
}

// Frames removes raw frames of accepted batches, for retention: condemn, prove, log, delete.
// It differs from the collection of orphans in two points. The proof is the caller's, as it is
// about published blocks; and what is condemned is a generation of all frames of an hour, so
// that there is one record an hour and not a marker for every batch that was ever accepted.
type Frames struct{ cfg FramesConfig }

// NewFrames checks the settings; it makes no request.
func NewFrames(c FramesConfig) (*Frames, error) {
	if c.Store == nil || c.Clock == nil {
		return nil, errors.New("gc: store and clock are needed")
	}
	for what, name := range map[string]string{"authority id": c.AuthorityID, "name": c.By} {
		if err := validName(what, name); err != nil {
			return nil, err
		}
	}
	if c.Each == nil {
		c.Each = OneByOne
	}
	return &Frames{c}, nil
}

// OneByOne is an Each that makes one call after the other.
func OneByOne(ctx context.Context, n int, fn func(ctx context.Context, i int) error) error {
	for i := range n {
		if err := fn(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// HourFrames are the frames of the batches whose last samples lie in one hour. It is for one
// caller at a time.
type HourFrames struct {
	f    *Frames
	hour timegrid.Hour
	// below is known to be condemned: the record only grows, so this stays true.
	below uint32
}

// Hour makes no request.
func (f *Frames) Hour(h timegrid.Hour) *HourFrames { return &HourFrames{f: f, hour: h} }

// FrameRemoval is one removal.
type FrameRemoval struct {
	// Batches whose frames may go, at most framelog.MaxFrames, with their last samples in the hour.
	Batches []*accepted.Batch
	// Below condemns the generations below it before any generation is searched for; 0 condemns
	// only what is found.
	Below uint32
	// Before is the time that all samples of the batches lie before, for the log.
	Before time.Time
	// Prove returns those of the frames that nobody needs. It is called after their generations
	// are condemned, and must read afresh whatever it relies on.
	Prove func(ctx context.Context, frames []framelog.Frame) ([]framelog.Frame, error)
	// DryRun neither condemns nor removes; the frames are proved all the same.
	DryRun bool
}

// Remove removes the frames and returns those that it removed, with the keys of their
// generations; batches without any are left out. After an error a repeat finishes what was begun.
//
// A duplicate that is answered meanwhile relies on a generation that is not condemned, which
// this does not touch (see accept.CondemnedHour). A generation that a delete of unknown outcome
// may remove later stays condemned for good.
func (h *HourFrames) Remove(ctx context.Context, r FrameRemoval) ([]framelog.Frame, error) {
	if !r.DryRun {
		if err := h.condemn(ctx, r.Below); err != nil {
			return nil, err
		}
	}
	frames := make([]framelog.Frame, len(r.Batches))
	err := h.f.cfg.Each(ctx, len(frames), func(ctx context.Context, i int) (err error) {
		frames[i], err = h.f.generations(ctx, r.Batches[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	frames = slices.DeleteFunc(frames, func(f framelog.Frame) bool { return len(f.Keys) == 0 })
	if len(frames) == 0 {
		return nil, nil
	}
	// The proof comes after the record is confirmed, as after the marker of an orphan: a duplicate
	// that did not see the record was decided before the proof, which so is about it as well.
	if !r.DryRun {
		if err := h.condemn(ctx, above(frames)); err != nil {
			return nil, err
		}
	}
	if frames, err = r.Prove(ctx, frames); err != nil || len(frames) == 0 || r.DryRun {
		return frames, err
	}
	return frames, h.f.remove(ctx, frames, r.Before)
}

// generations finds all generations of a batch's blob.
func (f *Frames) generations(ctx context.Context, e *accepted.Batch) (framelog.Frame, error) {
	r := framelog.Frame{Identity: e.Identity, FrameSHA256: e.FrameSHA256, FrameBytes: e.FrameBytes}
	for i, err := range objstore.List(ctx, f.cfg.Store, objstore.ListOptions{Prefix: layout.BlobStem(e.FrameSHA256)}) {
		if err != nil {
			return r, err
		}
		// No number is above the last generation, so it can't be condemned.
		if d, gen, err := layout.ParseBlob(i.Key); err == nil && d == e.FrameSHA256 && gen < math.MaxUint32 {
			r.Keys = append(r.Keys, i.Key)
		}
	}
	return r, nil
}

// above is the lowest generation that is above all of the frames.
func above(frames []framelog.Frame) (below uint32) {
	for _, f := range frames {
		for _, key := range f.Keys {
			_, gen, _ := layout.ParseBlob(key)
			below = max(below, gen+1)
		}
	}
	return below
}

// raises bounds the attempts to raise an hour's record against others that raise it too.
const raises = 16

// condemn returns nil once the hour's record is known to condemn the generations below the number.
func (h *HourFrames) condemn(ctx context.Context, below uint32) error {
	key := layout.CondemnedHour(h.hour)
	for n := 0; h.below < below; n++ {
		c, info, err := record.Read(ctx, h.f.cfg.Store, key, accept.CondemnedHourKind, accept.ParseCondemnedHour)
		there := !errors.Is(err, objstore.ErrNotFound)
		if there && err == nil {
			err = c.CheckBelongs(h.f.cfg.AuthorityID, h.hour)
		}
		if there && err != nil {
			return err
		}
		if h.below = max(h.below, c.Below); h.below >= below {
			return nil
		}
		next := accept.CondemnedHour{AuthorityID: h.f.cfg.AuthorityID, Hour: h.hour, Below: below, RaisedAt: max(h.f.cfg.Clock.Now().UnixNano(), 0), By: h.f.cfg.By}
		if there {
			_, err = h.f.cfg.Store.Replace(ctx, key, next.Marshal(), info.ETag, jsonContent)
		} else {
			_, err = h.f.cfg.Store.Create(ctx, key, next.Marshal(), jsonContent)
		}
		if err == nil {
			h.below = below
			return nil
		}
		// Another raised it, or the outcome is unknown: only a read tells what holds now.
		open := errors.Is(err, objstore.ErrExists) || errors.Is(err, objstore.ErrPreconditionFailed) || errors.Is(err, objstore.ErrUnknown) || errors.Is(err, objstore.ErrConflict)
		if !open || n >= raises || ctx.Err() != nil {
			return fmt.Errorf("condemn generations of %s: %w", h.hour, err)
		}
	}
	return nil
}

var jsonContent = objstore.PutOptions{ContentType: "application/json"}

// remove logs the frames and then deletes them.
func (f *Frames) remove(ctx context.Context, frames []framelog.Frame, before time.Time) error {
	l := framelog.Log{AuthorityID: f.cfg.AuthorityID, By: f.cfg.By, Before: before.UnixNano(), RemovedAt: f.cfg.Clock.Now().UnixNano(), Frames: frames}
	body, err := l.Marshal()
	if err != nil {
		return err
	}
	// In this order, as a frame that is gone without a log entry would look like a loss. The key
	// holds the content's hash, so one that exists is this log.
	if _, err := f.cfg.Store.Create(ctx, l.Key(body), body, jsonContent); err != nil && !errors.Is(err, objstore.ErrExists) {
		return fmt.Errorf("log of removed frames: %w", err)
	}
	// On a versioned bucket a delete without a version would keep the bytes. One HEAD tells.
	first, err := f.cfg.Store.Head(ctx, frames[0].Keys[0])
	if err != nil && !errors.Is(err, objstore.ErrNotFound) {
		return err
	}
	versioned := first.Version != "" || err != nil
	return f.cfg.Each(ctx, len(frames), func(ctx context.Context, i int) error {
		for _, key := range frames[i].Keys {
			err := f.delete(ctx, key, versioned)
			if err != nil && !errors.Is(err, objstore.ErrNotFound) {
				return fmt.Errorf("delete %q: %w", key, err)
			}
		}
		return nil
	})
}

func (f *Frames) delete(ctx context.Context, key string, versioned bool) error {
	if !versioned {
		return f.cfg.Store.Delete(ctx, key)
	}
	info, err := f.cfg.Store.Head(ctx, key)
	if err != nil {
		return err
	}
	return objstore.DeleteVersion(ctx, f.cfg.Store, key, info.Version)
}
