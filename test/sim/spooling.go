package main

import (
	"context"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// maxKills of a process in one schedule.
const maxKills = 2

// landings of a spooling collector between two starts; the rest lands at the end.
const landings = 3

// openSpool starts a collector of the mode local_spool from what its disk has kept.
func (w *world) openSpool(p *process) {
	if p.disk == nil {
		p.disk = newDisk(w, p)
	}
	for {
		p.crashed, p.disk.locked, p.disk.crashIn, p.busy = false, false, 0, map[identity.Batch]int{}
		if w.faults.kills && p.kills < maxKills && w.ch.oneIn(3) {
			p.disk.crashIn = 1 + w.ch.n(100)
		}
		sp, err := spool.Open(spool.Config{
			Dir: "/spool", AuthorityID: p.authority, CollectorID: p.name, Target: p.protocol,
			FS: p.disk, Clock: p.port, Rand: attemptIDs{w},
			Events: spool.Events{Corrupt: func(path string, err error) { w.violated("spool", "%s is corrupt: %v", path, err) }},
		})
		if err == nil {
			p.spool, p.acceptor, p.ready = sp, sp, true
			break
		}
		if !p.crashed {
			w.violated("spool", "open: %v", err)
			return
		}
		p.kills++
		w.outage(p)
	}
	w.start(p.name+".land", p, nil, func(t *task, ctx context.Context) {
		for range landings {
			for range w.ch.n(6) {
				if t.pause() {
					return
				}
			}
			p.port.t = t
			err := (&spool.Lander{Spool: p.spool, Parallel: 1}).Land(ctx)
			if t.dead || p.crashed {
				return
			}
			w.note(t.name, "lands", "", "", err)
		}
	})
}

// outage is the end of a process, or of its whole machine.
func (w *world) outage(p *process) {
	if p.disk != nil && w.ch.n(2) == 1 {
		p.disk.powerLoss()
		w.note("sim", "power loss", p.name, "", nil)
	}
}

// wait is for the collector to be done with an identity: the calls of one process are
// real calls of one spool, which would block each other.
func (p *process) wait(t *task, id identity.Batch) bool {
	for p.busy[id] > 0 {
		if t.pause() {
			return false
		}
	}
	return true
}

// kept reports whether a spool holds the frame; safe asks for one that survives a loss of power.
func (w *world) kept(d identity.Digest, safe bool) bool {
	for _, p := range w.collectors {
		if p.disk != nil && p.disk.has(w.frames[d], d, safe) {
			return true
		}
	}
	return false
}

// readable: the frame is in the store, or in a spool that has not landed it.
func (w *world) readable(d identity.Digest) bool { return w.store.good(d) || w.kept(d, true) }

// checkLeft: a file leaves the spool for the store only.
func (w *world) checkLeft(d *disk, path string, f *file) {
	if !isSpooled(path) {
		return
	}
	for sum, frame := range w.frames {
		if w.acked[sum] && strings.HasSuffix(string(f.body), string(frame)) && !w.store.good(sum) && !d.has(frame, sum, false) {
			w.violated("I3", "%s leaves the spool, and the store has no good generation of %s", path, sum)
		}
	}
}

// restartAll ends every spooling collector and starts it from its disk; then all lands.
func (w *world) restartAll() {
	for _, p := range w.collectors {
		if p.disk == nil {
			continue
		}
		w.outage(p)
		w.tasks = nil
		p.port.t = nil
		w.openSpool(p)
		for _, t := range w.tasks {
			t.kill()
		}
		w.tasks = nil
		w.landAll(p)
	}
}

// landAll lands without faults: everything must leave, but what the store refuses.
func (w *world) landAll(p *process) {
	w.calm(p.name+".final", func(t *task, ctx context.Context) {
		p.port.t = t
		if err := (&spool.Lander{Spool: p.spool, Parallel: 1}).Land(ctx); err != nil {
			w.violated("progress", "a landing without faults: %v", err)
		}
	})
	if s := p.spool.Stats(); s.Batches+s.Quarantined > 0 && len(w.doubt) == 0 {
		w.violated("progress", "%d batches and %d losers did not land", s.Batches, s.Quarantined)
	}
}

// otherSpool reports whether another spool of the boot takes part.
func (w *world) otherSpool(s accept.Submission) bool {
	for _, a := range w.agents {
		for _, b := range a.queue {
			if b.sub.Identity.BootOf() == s.Identity.BootOf() && b.sub.SpoolID != s.SpoolID {
				return true
			}
		}
	}
	return false
}
