package main

import (
	"context"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
)

// gardener is a collection that runs as a service: reports, sweeps, the lease and the fence of gc.Runner.
type gardener struct {
	claim  string
	step   int
	dryRun bool
	// condemned are the generations that it has begun to condemn since it moved the state last.
	condemned map[string]bool
	// large: its plan is one that the breaker refuses, by hand and not by Plan.Tripped.
	large bool
}

// leaseOfGC is shorter than what passes while a process is stopped.
const leaseOfGC = 10 * time.Minute

// garden runs a collection as a service for some steps.
func (w *world) garden(p *process, passes int) {
	w.start(p.name, p, nil, func(t *task, ctx context.Context) {
		o := p.collection
		g := &gardener{claim: p.name + string(rune('0'+p.kills%10)), step: o.step, dryRun: o.dryRun}
		t.gardener, p.gardens = g, true
		r, err := gc.NewRunner(gc.RunnerConfig{
			Store: t.proc.tried(t, t), AuthorityID: p.authority, By: p.name, Claim: g.claim, Clock: t,
			Limits: gc.Limits{
				MinAge: max(o.minAge, 0), Delay: max(o.minAge, 0), Interval: time.Nanosecond, Lease: leaseOfGC,
				MaxListed: o.listed, MaxNames: o.names, Step: o.step, DryRun: o.dryRun,
			},
			Wait: t.awaits,
			Planned: func(_ gc.Source, plan gc.Plan) {
				g.large = len(plan.Candidates) > 50 && 10*len(plan.Candidates) > plan.Listed
			},
		})
		if err != nil {
			panic(err)
		}
		for range passes * 6 {
			if t.pause() {
				return
			}
			if t.ch.oneIn(4) {
				w.reportSome(t)
			}
			if o.force && t.ch.oneIn(3) { // an operator
				w.released = true // from when on it is asked for: an answer may be lost
				_, _ = gc.ReleaseBreaker(ctx, t.proc.tried(t, t), p.authority, "operator")
			}
			if _, err := r.Step(ctx); err != nil {
				w.note(t.name, "gc step ends", "", "", err)
			}
			if t.dead {
				return
			}
		}
		_ = r.Release(ctx)
	})
}

// scatter puts orphans of frames that nobody sends, so that plans are longer than a step.
func (w *world) scatter() {
	for r := range 1 + w.ch.n(len(ranges)) {
		s := frames()[frameName("agent-2", r, 1)]
		w.litter = append(w.litter, s.SHA256)
		for gen := range uint32(1 + w.ch.n(2)) {
			w.store.put(layout.Blob(s.SHA256, gen), s.Frame, w.now.Add(-longAgo))
		}
	}
}

// reportSome is a collector's report about whatever: it proves nothing, so it may be wrong.
func (w *world) reportSome(t *task) {
	if len(w.submissions) == 0 {
		return
	}
	r := gc.OrphanReport{AuthorityID: t.proc.authority, CollectorID: "c0", ReportedAt: w.now.UnixNano(), Submissions: uint64(t.ch.n(100))}
	for range 1 + t.ch.n(3) {
		d := w.submissions[t.ch.n(len(w.submissions))].SHA256
		if k := t.ch.n(1 + len(w.litter)); k > 0 {
			d = w.litter[k-1]
		}
		r.Frames = append(r.Frames, d)
	}
	for _, key := range w.store.list(layout.AcceptedPrefix) {
		if t.ch.n(2) == 0 {
			r.Witness = key
		}
	}
	if t.ch.oneIn(8) { // accepted or not: where it is not, the collection must take it for hidden
		r.Witness = layout.Accepted(w.submissions[t.ch.n(len(w.submissions))].Identity)
	}
	if body, err := r.Marshal(); err == nil {
		w.store.put(r.Key(body), body, w.now)
	}
}

// moves is called where a write of the state takes effect, before it does.
func (w *world) moves(t *task, body []byte) {
	next, err := gc.ParseState(body)
	if err != nil {
		w.violated("fence", "the state is written as %s: %v", body, err)
		return
	}
	last, _ := gc.ParseState(w.store.objects[layout.GCStateKey].body)
	if next.Claim == t.gardener.claim {
		t.gardener.condemned = nil
	}
	if last.Claim == "" || next.Claim == "" || next.Claim == last.Claim {
		return
	}
	w.note(t.name, "takes over from "+last.Claim, "", "", nil)
	if idle := w.now.Sub(time.Unix(last.UpdatedAt, 0)); idle < leaseOfGC {
		w.violated("fence", "%s takes over from %s, which moved the state %v ago", next.Claim, last.Claim, idle)
	}
}

// condemns: between two moves of the state to its own claim a process condemns one step of blobs at most. So one that was
// taken over finishes the step that it is in, and no other. That bounds work that is done twice; no delete is safe because of it.
func (g *gardener) condemns(w *world, p *process, key string) {
	st, err := gc.ParseState(w.store.objects[layout.GCStateKey].body)
	if err != nil {
		w.violated("fence", "%s condemns %s, and there is no state: %v", g.claim, key, err)
		return
	}
	if g.condemned == nil {
		g.condemned = map[string]bool{}
	}
	if st.Claim != g.claim {
		w.note(g.claim, "condemns as a zombie", key, "", nil)
	}
	if w.faults.pauses && w.ch.oneIn(8) {
		w.stop(p, 20+w.ch.n(100)) // between the fence and the markers
	}
	if g.condemned[key] = true; len(g.condemned) > g.step {
		w.violated("fence", "%s condemns %s, its %d. generation since it moved the state, which %q has; a step has %d", g.claim, key, len(g.condemned), st.Claim, g.step)
	}
	switch {
	case g.dryRun:
		w.violated("breaker", "a dry run condemns %s", key)
	case st.Claim == g.claim && st.Holds():
		w.violated("breaker", "%s condemns %s while the breaker holds: %s", g.claim, key, st.Breaker.Cause)
	case g.large && !w.released:
		w.violated("breaker", "%s condemns %s of a plan that is too large, and nobody has released it", g.claim, key)
	}
}

// stop stops a process for some turns; one that collects as a service now and then for longer than its lease.
func (w *world) stop(p *process, turns int) {
	p.paused = turns
	w.note("sim", "stops", p.name, "", nil)
	if p.gardens && w.ch.n(2) == 1 {
		w.now = w.now.Add(leaseOfGC + time.Minute)
	}
}

// deletes: a blob is deleted only after its marker is in the bucket, and a log that says that it is condemned.
func (g *gardener) deletes(w *world, key string) {
	if d, gen, err := layout.ParseBlob(key); err == nil {
		if _, ok := w.store.objects[layout.Condemned(d, gen)]; !ok {
			w.violated("marker", "a delete of %s before its marker", key)
		}
	}
	for _, k := range w.store.list(layout.BlobLogsPrefix) {
		l, err := gc.ParseLog(w.store.objects[k].body)
		if err != nil {
			w.violated("log", "%s: %v", k, err)
			return
		}
		for _, e := range l.Entries {
			if e.Key == key && e.Action == gc.Condemned {
				return
			}
		}
	}
	w.violated("log", "a delete of %s before its entry in the log", key)
}
