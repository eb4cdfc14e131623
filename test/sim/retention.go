package main

import (
	"context"
	"path"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/framelog"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// blocks is what the rollup has published, and who keeps what was promised.
type blocks struct {
	// covers: published blocks have the rows of the frame. They may be lost.
	covers map[identity.Digest]bool
	// owed: the frame was acknowledged since a proof last found it covered. What was acknowledged,
	// or decided and not yet told, before a proof is from then on the blocks' to keep.
	owed map[identity.Digest]bool
	// removed: some proof found it covered, so that its frame may be gone.
	removed map[identity.Digest]bool
}

// holds reports whether what was promised of d is kept.
func (w *world) holds(d identity.Digest) bool {
	return !w.blocks.owed[d] || w.blocks.covers[d] || w.readable(d)
}

// publish makes a block of one accepted batch whose frame can be read, or loses all blocks.
func (w *world) publish() {
	if w.ch.oneIn(4) && len(w.blocks.covers) > 0 {
		clear(w.blocks.covers)
		w.note("sim", "loses", "all blocks", "", nil)
		for _, d := range w.ackedOrder {
			if !w.holds(d) {
				w.violated("I2", "%s was acknowledged, no block has it any more, and no generation is readable", d)
			}
		}
		return
	}
	s := w.submissions[w.ch.n(len(w.submissions))]
	if m, ok := w.manifest(s.Identity); ok && m.FrameSHA256 == s.SHA256 && w.store.good(s.SHA256) {
		w.blocks.covers[s.SHA256] = true
		w.note("sim", "publishes", s.SHA256.String(), "", nil)
	}
}

// manifest of a batch that was accepted.
func (w *world) manifest(id identity.Batch) (accept.Manifest, bool) {
	o, ok := w.store.objects[layout.Accepted(id)]
	m, err := accept.ParseManifest(o.body)
	return m, ok && !o.rotten && err == nil && m.Identity == id && m.AuthorityID == "authority-1"
}

// retain runs passes of the retention of raw frames over all that was ever submitted.
func (w *world) retain(p *process, passes int) {
	w.start(p.name, p, nil, func(t *task, ctx context.Context) {
		for range passes {
			if t.pause() {
				return
			}
			if err := w.retainOnce(ctx, t); err != nil {
				w.note(t.name, "retention ends", "", "", err)
			}
			if t.dead {
				return
			}
		}
	})
}

func (w *world) retainOnce(ctx context.Context, t *task) error {
	f, err := gc.NewFrames(gc.FramesConfig{Store: t.proc.tried(t, t), AuthorityID: "authority-1", By: t.name, Clock: t})
	if err != nil {
		panic(err)
	}
	// As a plan has them: the batches that blocks had at some time.
	of := map[timegrid.Hour][]*accepted.Batch{}
	var hours []timegrid.Hour
	for _, s := range w.submissions {
		if m, ok := w.manifest(s.Identity); ok && m.FrameSHA256 == s.SHA256 && w.blocks.covers[s.SHA256] && !m.Inline {
			h := timegrid.HourOfNS(m.MaxTime)
			b := m.Batch()
			if of[h] == nil {
				hours = append(hours, h)
			}
			of[h] = append(of[h], &b)
		}
	}
	for _, h := range hours {
		_, err := f.Hour(h).Remove(ctx, gc.FrameRemoval{Batches: of[h], Before: time.Unix(9, 0), Prove: t.proveCovered})
		if err != nil {
			return err
		}
	}
	return nil
}

// proveCovered keeps the frames of batches that blocks do not have, or that have a conflict.
func (t *task) proveCovered(ctx context.Context, frames []framelog.Frame) (proved []framelog.Frame, err error) {
	for _, f := range frames {
		page, err := t.List(ctx, objstore.ListOptions{Prefix: path.Dir(layout.Quarantine(f.Identity, identity.Digest{})) + "/"})
		if err != nil {
			return nil, err
		}
		err = t.read("proof", f.FrameSHA256.String(), func() error {
			if len(page.Objects) == 0 && t.blocks.covers[f.FrameSHA256] {
				t.handOver(f.FrameSHA256)
				proved = append(proved, f)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return proved, nil
}

// handOver is the moment of a proof: the blocks keep what was acknowledged and decided so far.
func (w *world) handOver(d identity.Digest) {
	w.blocks.owed[d], w.blocks.removed[d] = false, true
	for _, t := range w.tasks {
		if t.call != nil && t.call.sub.SHA256 == d && t.call.decided {
			t.call.handedOver = true
		}
	}
}

// decide notes that from here on nothing but the frame relied on, or a block, has to keep the
// call's promise: where it made the manifest, and each time that it reads which generations of
// the hour are condemned.
func (c *call) decide() { c.decided, c.handedOver = true, false }

// moved: the call goes to another generation, and will decide again.
func (c *call) moved() {
	if !c.made {
		c.decided, c.handedOver = false, false
	}
}

// logged reports whether a log says that the frame was removed.
func (w *world) logged(d identity.Digest) bool {
	for _, key := range w.store.list(layout.FrameLogsPrefix) {
		l, err := framelog.Parse(w.store.objects[key].body)
		if err != nil {
			w.violated("log", "%s: %v", key, err)
		}
		for _, f := range l.Frames {
			if f.FrameSHA256 == d {
				return true
			}
		}
	}
	return false
}

// calmRetention is a pass without faults: afterwards no frame is left that blocks have, but of
// batches with a conflict or in doubt.
func (w *world) calmRetention() {
	if !w.retaining {
		return
	}
	w.calm("final-retention", func(t *task, ctx context.Context) {
		if err := w.retainOnce(ctx, t); err != nil {
			w.violated("progress", "a retention without faults: %v", err)
		}
	})
	for _, s := range w.submissions {
		conflict := len(w.store.list(path.Dir(layout.Quarantine(s.Identity, s.SHA256))+"/")) > 0
		m, ok := w.manifest(s.Identity)
		if !ok || m.FrameSHA256 != s.SHA256 || m.Inline || conflict || !w.blocks.covers[s.SHA256] {
			continue
		}
		if left := w.store.list(layout.BlobStem(s.SHA256)); len(left) > 0 {
			w.violated("I10", "%s is still there after its retention", left[0])
		}
	}
}
