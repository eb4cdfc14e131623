package main

import (
	"fmt"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// faults are the odds of a request's fates, in percent, and which events may happen.
type faults struct {
	lost, late, dropped, refused int // of writes
	unread                       int // of reads
	damage                       int // of blob bodies
	denied                       int // 403, of all requests
	kills, pauses, jumps, losses bool
}

var weather = []faults{
	{},
	{lost: 4, late: 4, dropped: 2, refused: 2, unread: 3, pauses: true},
	{lost: 8, late: 10, dropped: 5, refused: 5, unread: 6, damage: 4, kills: true, pauses: true, losses: true},
	{lost: 3, late: 20, unread: 2, kills: true, jumps: true, losses: true},
	{refused: 10, damage: 10, unread: 10, jumps: true, pauses: true, losses: true},
	{denied: 12, lost: 3, late: 4, kills: true, jumps: true, pauses: true},
}

// longAgo is older than every minimum age of a collection.
const longAgo = 48 * time.Hour

// Kinds of agents after the first.
const (
	otherAgent    = iota // another agent id
	resender             // the same spool and the same bytes, restored from a copy
	diskClone            // the same spool id, other bytes
	machineClone         // the same boot id, another spool id
	overlapping          // the same spool, ranges that overlap
	kindsOfAgents        // how many
)

// setup draws who takes part, what the store holds from before, and the faults.
func (w *world) setup() {
	w.faults = weather[w.ch.n(len(weather))]
	w.sticky = w.ch.n(3)
	w.store.blind = w.ch.oneIn(8)
	w.store.versioned = w.ch.oneIn(4)
	w.authorities = w.ch.oneIn(8)
	w.store.page = [...]int{0, 0, 2, 3}[w.ch.n(4)]
	w.spooling = w.ch.oneIn(5) && !w.authorities
	w.elsewhere = w.spooling && w.ch.oneIn(3)
	w.indexed = w.ch.oneIn(4)
	w.naming = w.ch.oneIn(3) && !w.authorities && !w.spooling
	w.store.put(layout.JournalBeginKey, journal.BeginKind.Marshal(journal.Begin{AuthorityID: "authority-1", By: journal.ByAuthority}), w.now)
	if w.ch.oneIn(40) {
		w.hoard()
	}
	most := [...]int{3, 2, 2, 3, 2} // collectors, collections, batches, further agents, passes
	if w.ch.small {
		most = [...]int{1, 1, 1, 2, 1}
	}
	collectors, collections := 1+w.ch.n(most[0]), 1+w.ch.n(most[1])
	if w.spooling {
		collectors = 1
	}
	if w.elsewhere {
		collectors = 2
	}

	// Collectors that let records carry frames, all of them or the short ones, and others that do not, share a bucket.
	inlining := w.ch.oneIn(2)
	if inlining {
		w.finalBelow = w.drawBelow()
	}
	first := &agent{name: "a0", spool: "spool-1"}
	for r := range 1 + w.ch.n(most[2]) {
		first.give("agent-1", r, 0)
	}
	w.agents = append(w.agents, first)
	for i := range w.ch.n(most[3]) {
		a := &agent{name: fmt.Sprintf("a%d", i+1), spool: "spool-1"}
		switch w.ch.n(kindsOfAgents) {
		case otherAgent:
			a.spool = "spool-2"
			a.give("agent-2", w.ch.n(len(ranges)), 0)
		case resender:
			a.give("agent-1", w.ch.n(2), 0)
		case diskClone:
			a.give("agent-1", w.ch.n(2), 1)
		case machineClone:
			a.spool = "spool-3"
			a.give("agent-1", w.ch.n(2), w.ch.n(2))
		case overlapping:
			a.give("agent-1", 2, 0)
		}
		w.agents = append(w.agents, a)
	}
	for _, a := range w.agents {
		for _, b := range a.queue {
			w.involve(b.sub)
		}
	}
	for i := range collectors {
		p := &process{name: fmt.Sprintf("c%d", i), authority: "authority-1", once: i%2 == 1}
		if w.authorities && w.ch.oneIn(3) {
			p.authority = "authority-2"
		}
		p.spools = w.spooling && i == 0
		if inlining {
			p.inlineBelow = w.drawBelow()
		}
		p.names = w.naming && w.ch.n(4) > 0
		p.restart = func() { w.boot(p) }
		w.collectors = append(w.collectors, p)
		w.boot(p)
	}
	// Collections run as a service or by hand, and a service has company in most of its schedules, for there is nobody to take over else.
	service := w.ch.oneIn(4)
	if service {
		collections = 1 + min(w.ch.n(most[1]+1), most[1]-1)
		if w.ch.n(3) > 0 {
			w.scatter()
		}
		if w.ch.oneIn(8) {
			w.hoard()
		}
	}
	for i := range collections {
		p := &process{name: fmt.Sprintf("gc%d", i), authority: "authority-1", once: i%2 == 1, collection: w.drawCollection()}
		run := w.collect
		if service {
			run = w.garden
		}
		p.restart = func() { run(p, 1) }
		run(p, 1+w.ch.n(most[4]))
	}
	if w.retaining = w.ch.oneIn(3) && !w.authorities && !w.spooling; w.retaining {
		// Agents that were offline, or were restored: they send the first batch again and again.
		back := &agent{name: "back", spool: "spool-1"}
		for range w.ch.n(4) {
			back.give("agent-1", 0, 0)
		}
		w.agents = append(w.agents, back)
		for i := range 1 + w.ch.n(2) {
			p := &process{name: fmt.Sprintf("ret%d", i), authority: "authority-1", once: i%2 == 0}
			p.restart = func() { w.retain(p, 2) }
			w.retain(p, 2+w.ch.n(4))
		}
	}
	if w.naming {
		w.setupEpochs()
	}
	if w.indexed {
		p := &process{name: "rec", authority: "authority-1"}
		p.restart = func() { w.index(p, 1) }
		w.index(p, 1+w.ch.n(2))
	}
}

// drawBelow draws a threshold: none, between the lengths of the frames, or all.
func (w *world) drawBelow() int {
	return [...]int{0, len(frames()[frameName("agent-1", 0, 0)].Frame), accept.MaxInlineFrame, accept.MaxInlineFrame}[w.ch.n(4)]
}

func (a *agent) give(id string, r, v int) {
	s := frames()[frameName(id, r, v)]
	s.SpoolID = a.spool
	a.queue = append(a.queue, &queued{sub: s})
}

// involve draws what earlier lives left behind for a frame, once.
func (w *world) involve(s accept.Submission) {
	if _, ok := w.frames[s.SHA256]; ok {
		return
	}
	w.frames[s.SHA256] = s.Frame
	w.submissions = append(w.submissions, s)
	w.identityOf[s.SHA256] = s.Identity
	at := w.now.Add([...]time.Duration{-longAgo, -longAgo, 0}[w.ch.n(3)])
	put := func(key string, body []byte) {
		w.store.put(key, body, at)
		w.written[key] = identity.Sum(body) == s.SHA256
	}
	blob := layout.Blob(s.SHA256, 0)
	marker := accept.CondemnedMarker{FrameSHA256: s.SHA256, PlanID: "earlier"}
	inFlight := func(key string) {
		w.late = append(w.late, request{"earlier gc: delete " + key, func() error { w.delete(key); return nil }})
	}
	switch w.ch.n(16) {
	case 4, 5: // an orphan
		put(blob, s.Frame)
	case 6: // a truncated upload of an old program
		put(blob, s.Frame[:len(s.Frame)/2])
	case 7: // bit rot: the right size, other bytes
		put(blob, damaged(s.Frame))
	case 8: // condemned; the delete is still on its way
		put(marker.Key(), marker.Marshal())
		if w.ch.n(2) == 0 {
			put(blob, s.Frame)
		}
		inFlight(blob)
	case 10: // the same for two generations
		for gen := range uint32(2) {
			marker.Generation = gen
			put(marker.Key(), marker.Marshal())
			put(layout.Blob(s.SHA256, gen), s.Frame)
			inFlight(layout.Blob(s.SHA256, gen))
		}
	case 9: // a collector died; its manifest is still on its way
		put(blob, s.Frame)
		body, key := w.drawForm(w.earlier(s)).MarshalWith(s.Frame), layout.Accepted(s.Identity)
		if w.authorities || w.spooling && !w.elsewhere {
			return // whose authority it would be is open; a spool's collector is alone
		}
		w.late = append(w.late, request{"earlier collector: create " + key, func() error {
			return w.store.create(key, body, identity.Digest{}, w.now)
		}})
		w.calls = append(w.calls, &call{sub: s}) // it may take effect at any time
	case 11: // accepted; the manifest was damaged since
		put(blob, s.Frame)
		_, taken := w.store.objects[layout.Accepted(s.Identity)]
		if taken || w.authorities || w.spooling {
			return
		}
		m := w.drawForm(w.earlier(s))
		w.store.put(layout.Accepted(s.Identity), nil, at)
		o := w.corrupted(m)
		o.born = w.store.births
		w.store.objects[layout.Accepted(s.Identity)] = o
		w.doubt[s.Identity] = m
		w.calls = append(w.calls, &call{sub: s})
	case 12: // quarantined; the record was damaged since
		put(blob, s.Frame)
		w.store.put(layout.Quarantine(s.Identity, s.SHA256), []byte("{}"), at)
		if w.ch.n(2) == 1 {
			o := w.store.objects[layout.Quarantine(s.Identity, s.SHA256)]
			o.rotten = true
			w.store.objects[layout.Quarantine(s.Identity, s.SHA256)] = o
		}
		w.doubtful[s.SHA256] = true
	case 13: // condemned by a marker that was damaged since; the delete is still on its way
		put(blob, s.Frame)
		body := [][]byte{nil, []byte("{}"), marker.Marshal()[:40], make([]byte, accept.MaxRecordBytes+1), marker.Marshal()}
		k := w.ch.n(len(body))
		w.store.put(marker.Key(), body[k], at)
		if k == len(body)-1 {
			o := w.store.objects[marker.Key()]
			o.rotten = true
			w.store.objects[marker.Key()] = o
		}
		inFlight(blob)
	case 14: // an orphan that the journal names, of a bucket that was restored in part
		put(blob, s.Frame)
		if w.authorities {
			return // whose journal it would be is open
		}
		old := journal.Segment{
			Position: journal.Position{Run: journal.RunID(s.SHA256[:16])}, Closed: true, Entries: []journal.Entry{w.earlier(s).Entry(journal.Accepted)},
			Opening: &journal.Opening{Writer: "earlier", Role: journal.RoleCollector, Authority: "authority-1"},
		}
		body, err := old.Marshal()
		if err != nil {
			panic(err)
		}
		w.store.put(old.Position.Key(), body, at)
		w.everNamed[s.SHA256] = true
	}
}

// earlier is the manifest of s as an earlier collector wrote it.
func (w *world) earlier(s accept.Submission) accept.Manifest {
	return accept.Manifest{
		AuthorityID: "authority-1", Identity: s.Identity, FrameSHA256: s.SHA256, FrameBytes: uint64(len(s.Frame)),
		RawBlobKey: layout.Blob(s.SHA256, 0), AcceptedAt: w.now.UnixNano(), CollectorID: "earlier", WireVersion: s.WireVersion,
		FrameVersion: s.FrameVersion, AttemptID: fmt.Sprintf("%032x", len(w.submissions)), RecordCount: s.Records, MinTime: s.MinTime, MaxTime: s.MaxTime,
	}
}

// drawForm makes some manifests ones that carry their frame.
func (w *world) drawForm(m accept.Manifest) accept.Manifest {
	if w.ch.oneIn(3) {
		m.Inline, m.RawBlobKey = true, ""
	}
	return m
}

// jump moves one process's clock.
func (w *world) jump(p *process) {
	steps := []time.Duration{time.Hour, -time.Hour, 365 * 24 * time.Hour, -365 * 24 * time.Hour}
	d := steps[w.ch.n(len(steps))]
	p.skew += d
	w.note("sim", "clock of "+p.name, d.String(), "", nil)
}
