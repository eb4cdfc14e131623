package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/derived/ledger"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// checkAnswer is what must hold at the moment of an answer, whether or not it arrives.
func (w *world) checkAnswer(c *call, res accept.Result) {
	id, mine, holder := c.sub.Identity, c.sub.SHA256, res.Manifest.FrameSHA256
	if _, ok := w.doubt[id]; ok && !w.spooling {
		w.violated("I1", "%s is answered %s, and its manifest can't be read", id, res.Outcome)
	}
	if was, ok := w.truth[id]; ok && was != holder && !w.elsewhere {
		w.violated("I1", "%s is held by %s, before by %s", id, holder, was)
	}
	w.truth[id] = holder
	if !w.acked[mine] {
		w.acked[mine] = true
		w.ackedOrder = append(w.ackedOrder, mine)
	}
	if !c.verified && !c.local {
		w.violated("I4", "%s for %s without a verified blob", res.Outcome, mine)
	}
	switch res.Outcome {
	case accept.Accepted:
		if holder != mine {
			w.violated("I1", "accepted %s, held by %s", mine, holder)
		}
	case accept.Duplicate:
		if holder != mine || !c.sawManifest && !c.local {
			w.violated("I4", "duplicate of %s: held by %s, manifest read: %v", mine, holder, c.sawManifest)
		}
	case accept.Conflict:
		if holder == mine {
			w.violated("I1", "%s conflicts with itself", mine)
		}
		// A spool that decides alone names no record, because there is none before the landing.
		if res.QuarantineKey == "" && !c.local {
			w.violated("conflict", "no quarantine key for %s", mine)
		}
		key := cmp.Or(res.QuarantineKey, layout.Quarantine(id, mine))
		w.conflicts = append(w.conflicts, key)
		w.checkQuarantine(key, id, mine, res.QuarantineKey != "")
	default:
		w.violated("I6", "no outcome for %s", mine)
	}
	if !c.handedOver {
		w.blocks.owed[mine] = true
	}
	if !w.holds(mine) || !w.blocks.removed[mine] && !w.readable(mine) {
		w.violated("I2", "%s is answered %s, and no generation of %s is readable", id, res.Outcome, mine)
	}
	boot := id.BootOf()
	if was, ok := w.spools[boot]; ok && was != c.sub.SpoolID && !w.elsewhere {
		w.violated("boot", "%s is served for %s and for %s", boot, was, c.sub.SpoolID)
	}
	w.spools[boot] = c.sub.SpoolID
}

// checkQuarantine checks the record of a frame that lost. named: an answer names it, so it exists.
func (w *world) checkQuarantine(key string, id identity.Batch, d identity.Digest, named bool) {
	o, ok := w.store.objects[key]
	if key == layout.Quarantine(id, d) && (w.doubtful[d] || w.elsewhere || !ok && !named && !w.landed && w.kept(d, true)) {
		return // damaged, or not landed: decided against a batch of the spool
	}
	if key != layout.Quarantine(id, d) || !ok {
		w.violated("conflict", "no quarantine record %q for %s", key, d)
		return
	}
	if r, err := accept.ParseConflictRecord(o.body); err != nil || r.SubmittedSHA256 != d || r.Identity != id {
		w.violated("conflict", "quarantine record %q: %+v (%v)", key, r, err)
	}
}

// checkCreated: a record may only name a generation that held the right bytes before it.
func (w *world) checkCreated(key string, body []byte) {
	var names string
	switch {
	case strings.HasPrefix(key, layout.RawBlobsPrefix):
		d, _, err := layout.ParseBlob(key)
		w.written[key] = w.written[key] || err == nil && identity.Sum(body) == d
		return
	case strings.HasPrefix(key, layout.AcceptedByTimePrefix), isReference(key):
		w.checkDerived(key, body)
		return
	case strings.HasPrefix(key, layout.JournalPrefix):
		w.checkEntries(key, body)
		return
	case strings.HasPrefix(key, layout.AcceptedPrefix):
		m, err := accept.ParseManifest(body)
		if err != nil {
			w.violated("order", "manifest %s: %v", key, err)
		}
		if m.Inline {
			return // its frame was hashed with it
		}
		names = m.RawBlobKey
	case strings.HasPrefix(key, layout.QuarantinePrefix):
		r, err := accept.ParseConflictRecord(body)
		if err != nil {
			w.violated("order", "quarantine record %s: %v", key, err)
		}
		if r.Inline() {
			return
		}
		names = r.SubmittedBlobKey
	default:
		return
	}
	if !w.written[names] {
		w.violated("order", "%s names %s, which never held the frame", key, names)
	}
}

// checkAuthority: all collectors that serve write under the store's one authority.
func (w *world) checkAuthority(p *process) {
	o, ok := w.store.objects[layout.AuthorityKey]
	r, err := accept.ParseAuthorityRecord(o.body)
	if !ok || err != nil || r.AuthorityID != p.authority {
		w.violated("authority", "%s serves %q, the store says %q", p.name, p.authority, r.AuthorityID)
	}
}

// finish ends all faults: late requests land, garbage is collected, every sender
// asks once more, garbage is collected again. Then everything promised is looked up.
func (w *world) finish() {
	for len(w.late) > 0 {
		w.land()
	}
	w.faults = faults{}
	w.calmCollection("final-1")
	w.checkOrphans()
	w.mend()
	w.restartAll()
	if !w.authorities {
		w.askAgain()
	}
	for _, p := range w.collectors {
		if p.disk != nil && w.violation == nil {
			w.landAll(p)
		}
	}
	w.landed = true
	w.calmCollection("final-2")
	w.calmRetention()
	clear(w.blocks.covers)
	for _, d := range w.ackedOrder {
		if !w.holds(d) || !w.blocks.removed[d] && !w.readable(d) {
			w.violated("I2", "no generation of %s is readable at the end", d)
		}
	}
	w.checkRecords()
	w.checkHistories()
}

// calm plays a task alone, without faults.
func (w *world) calm(name string, body func(*task, context.Context)) {
	p := &process{name: name}
	w.tasks = nil
	w.start(name, p, nil, body)
	for t := w.tasks[0]; ; {
		if _, more := t.next(); !more {
			w.tasks = nil
			return
		}
	}
}

func (w *world) calmCollection(id string) {
	if w.naming { // collectors that are gone write no more segments
		w.calm(id+".fences", func(t *task, ctx context.Context) {
			if err := w.fence(ctx, t, func() bool { return true }); err != nil {
				w.violated("progress", "fences without faults: %v", err)
			}
		})
	}
	w.calm(id, func(t *task, ctx context.Context) {
		authority := "authority-1"
		if o, ok := w.store.objects[layout.AuthorityKey]; ok {
			r, _ := accept.ParseAuthorityRecord(o.body)
			authority = r.AuthorityID
		}
		if err := w.collectOnce(ctx, t, authority, id, collection{minAge: -time.Second, force: true}); err != nil {
			w.violated("progress", "a collection without faults: %v", err)
		}
	})
}

// askAgain submits every frame once more to a new collector: no store fault is left, so
// each must get an outcome, and the outcome must fit all answers before.
func (w *world) askAgain() {
	asked := map[identity.Digest]bool{}
	for _, a := range w.agents {
		for _, b := range a.queue {
			if asked[b.sub.SHA256] || w.violation != nil {
				continue
			}
			asked[b.sub.SHA256] = true
			c := &call{sub: b.sub, from: w.clock + 1}
			w.clock += 2
			w.calls = append(w.calls, c)
			w.calm("final", func(t *task, ctx context.Context) {
				t.call = c
				policy := simPolicy
				policy.Generations = 100
				var to accept.Acceptor
				to, err := accept.New(accept.Config{Store: t, AuthorityID: "authority-1", CollectorID: "final", Clock: t, Rand: attemptIDs{w}, Policy: policy, InlineBelow: w.finalBelow})
				if err != nil {
					panic(err)
				}
				if p := w.collectors[0]; p.spools {
					c.local, p.port.t, to = true, t, p.acceptor
				}
				res, err := to.Accept(ctx, c.sub)
				var retry *accept.RetryError
				if asRetry(err, &retry) {
					w.violated("progress", "without faults, %s is told %v", c.sub.Identity, err)
				}
				w.answered("final", c, res, err)
			})
		}
	}
}

// checkRecords compares manifests and quarantine records with the answers, and the
// ledger of each boot with a count by hand.
func (w *world) checkRecords() {
	for _, s := range w.submissions {
		holder, ok := w.truth[s.Identity]
		if !ok || w.elsewhere {
			continue
		}
		o, there := w.store.objects[layout.Accepted(s.Identity)]
		m, err := accept.ParseManifest(o.body)
		if !there || err != nil || m.FrameSHA256 != holder || m.FrameBytes != uint64(len(w.frames[holder])) {
			w.violated("I1", "the manifest of %s is not what was answered (%v)", s.Identity, err)
		}
	}
	for _, key := range w.conflicts {
		id, d, err := layout.ParseQuarantine(key)
		if err != nil {
			w.violated("conflict", "%v", err)
			continue
		}
		w.checkQuarantine(key, id, d, false)
	}
	ledgers := map[identity.Boot]*ledger.Ledger{}
	var boots []identity.Boot
	seen := map[identity.Boot]map[uint64]int{}
	for _, key := range w.store.list(layout.AcceptedPrefix) {
		id, err := layout.ParseAccepted(key)
		if err != nil {
			w.violated("I1", "%v", err)
			continue
		}
		b := id.BootOf()
		if ledgers[b] == nil {
			boots = append(boots, b)
			ledgers[b], seen[b] = ledger.New(b), map[uint64]int{}
		}
		m, _ := accept.ParseManifest(w.store.objects[key].body)
		ledgers[b].Add(ledger.Entry{Start: id.SeqStart, End: id.SeqEnd, AcceptedAt: m.AcceptedAt})
		for s := id.SeqStart; s <= id.SeqEnd; s++ {
			seen[b][s]++
		}
	}
	for _, b := range boots {
		l := ledgers[b]
		var twice, noted uint64
		for _, n := range seen[b] {
			if n > 1 {
				twice++
			}
		}
		for _, r := range l.Overlaps(0) {
			noted += r.Count()
		}
		if l.RecordCount() != uint64(len(seen[b])) || noted != twice {
			w.violated("ledger", "%d records and %d overlapping, by hand %d and %d", l.RecordCount(), noted, len(seen[b]), twice)
		}
	}
}

// checkOrphans: after a calm collection every readable blob has its reference.
func (w *world) checkOrphans() {
	for _, key := range w.store.list(layout.RawBlobsPrefix) {
		d, _, _ := layout.ParseBlob(key)
		i := slices.IndexFunc(w.submissions, func(s accept.Submission) bool { return s.SHA256 == d })
		if i < 0 || identity.Sum(w.store.objects[key].body) != d {
			continue // doubtful ones are reported, and stay
		}
		id := w.submissions[i].Identity
		if _, doubt := w.doubt[id]; doubt || w.everNamed[d] {
			continue
		}
		m, err := accept.ParseManifest(w.store.objects[layout.Accepted(id)].body)
		_, quarantined := w.store.objects[layout.Quarantine(id, d)]
		if (err != nil || m.FrameSHA256 != d || m.Inline) && !quarantined {
			w.violated("I10", "the orphan %s is still there", key)
		}
	}
}
