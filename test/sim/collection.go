package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// collection is how one garbage collector is run.
type collection struct {
	minAge time.Duration // negative is none
	listed int           // blobs of one plan; the next goes on behind them. 0 is all
	dryRun bool
	force  bool // an operator has looked at a plan that the breaker refuses
	loses  bool // its log fails now and then
	step   int  // candidates that are condemned together
	names  int  // of a service: at most so many in memory
}

func (w *world) drawCollection() collection {
	return collection{
		minAge: [...]time.Duration{-1, -1, time.Hour}[w.ch.n(3)],
		listed: [...]int{0, 0, 1, 3}[w.ch.n(4)],
		dryRun: w.ch.oneIn(12),
		force:  w.ch.oneIn(3),
		loses:  w.faults.losses && w.ch.oneIn(4),
		step:   [...]int{1, 1, 2, 100}[w.ch.n(4)],
		names:  [...]int{0, 1, 2}[w.ch.n(3)],
	}
}

// collect runs garbage collections, one after the other.
func (w *world) collect(p *process, passes int) {
	w.start(p.name, p, nil, func(t *task, ctx context.Context) {
		for i := range passes {
			if t.pause() {
				return
			}
			if err := w.collectOnce(ctx, t, p.authority, fmt.Sprintf("%s-%d-%d", p.name, p.kills, i), p.collection); err != nil {
				w.note(t.name, "gc ends", "", "", err)
			}
			if t.dead {
				return
			}
		}
	})
}

// collectOnce plans and executes, part by part.
func (w *world) collectOnce(ctx context.Context, t *task, authority, id string, o collection) error {
	c, err := gc.New(gc.Config{Store: t.proc.tried(t, t), AuthorityID: authority, Clock: t})
	if err != nil {
		panic(err)
	}
	before, planned := w.survey(), map[string]int{}
	for after := ""; ; {
		part, now := w.survey(), w.now
		plan, err := c.Plan(ctx, gc.PlanOptions{
			ID: id, Now: now, MinAge: o.minAge, Prefix: layout.RawBlobsPrefix, StartAfter: after, MaxListed: o.listed,
		})
		if err != nil {
			return err
		}
		w.checkPlan(plan, part, w.survey(), now, o)
		for _, k := range plan.Candidates {
			planned[k.Key]++
		}
		for _, k := range plan.Kept {
			planned[k.Key]++
		}
		if err := w.execute(ctx, t, c, plan, o); err != nil {
			return err
		}
		if after = plan.Next; after == "" {
			break
		}
	}
	w.checkWhole(before, w.survey(), planned)
	return nil
}

var errLog = errors.New("the log is full")

func (w *world) execute(ctx context.Context, t *task, c *gc.Collector, plan gc.Plan, o collection) error {
	t.logged = map[string]bool{}
	defer func() { t.logged = nil }()
	writes, lost := t.writes, false
	_, err := c.Execute(ctx, plan, gc.ExecuteOptions{DryRun: o.dryRun, Force: o.force, Step: o.step, Wait: t.awaits, Log: func(_ context.Context, entries []gc.Entry) error {
		if o.loses && !t.dead && t.ch.oneIn(6) {
			lost, writes = true, t.writes
			return errLog
		}
		for _, e := range entries {
			t.logged[e.Key] = t.logged[e.Key] || e.Action == gc.Condemned
		}
		return nil
	}})
	// By hand, and not by Plan.Tripped.
	tripped := len(plan.Candidates) > 50 && 10*len(plan.Candidates) > plan.Listed && !o.dryRun && !o.force
	switch {
	case tripped && (!errors.Is(err, gc.ErrBreaker) || t.writes != writes):
		w.violated("breaker", "%d of %d blobs, %d writes: %v", len(plan.Candidates), plan.Listed, t.writes-writes, err)
	case !tripped && errors.Is(err, gc.ErrBreaker):
		w.violated("breaker", "tripped by %d of %d blobs", len(plan.Candidates), plan.Listed)
	case o.dryRun && !lost && t.writes != writes:
		w.violated("breaker", "%d writes of a dry run", t.writes-writes)
	case lost && t.writes != writes:
		w.violated("log", "%d writes after the log had failed", t.writes-writes)
	}
	return err
}

// survey is which blobs are there, since when; which frames the journal names; and how often some of it was lost.
type survey struct {
	born  map[string]uint64
	named map[identity.Digest]bool
	lost  int
}

func (w *world) survey() survey {
	v := survey{map[string]uint64{}, w.journalled(), w.lost}
	for key, o := range w.store.objects {
		if strings.HasPrefix(key, layout.RawBlobsPrefix) {
			v.born[key] = o.born
		}
	}
	return v
}

func isReference(key string) bool {
	return strings.HasPrefix(key, layout.AcceptedByBlobPrefix) || strings.HasPrefix(key, layout.QuarantineByBlobPrefix)
}

// checkPlan: the plan was made while the store went from before to after. A blob that was
// young, or named in the journal all the time, is no candidate; one that was never either is.
func (w *world) checkPlan(p gc.Plan, before, after survey, now time.Time, o collection) {
	young := func(key string) bool {
		return o.minAge > 0 && now.Sub(w.store.objects[key].at) < o.minAge
	}
	there := func(key string) bool { return before.born[key] != 0 && after.born[key] == before.born[key] }
	for _, k := range p.Candidates {
		// Without a loss meanwhile what was named before stays so.
		if before.named[k.SHA256] && before.lost == after.lost {
			w.violated("plan", "%s is a candidate; the journal named it all the time", k.Key)
		}
		if there(k.Key) && young(k.Key) {
			w.violated("plan", "%s is a candidate, %v old", k.Key, now.Sub(k.LastModified))
		}
	}
	for _, k := range p.Kept {
		d, _, err := layout.ParseBlob(k.Key)
		if err == nil && there(k.Key) && !young(k.Key) && !w.everNamed[d] {
			w.violated("plan", "%s is kept as %s", k.Key, k.Reason)
		}
	}
}

// checkWhole: what was there all the time is in the plans, once.
func (w *world) checkWhole(before, after survey, planned map[string]int) {
	for key, born := range before.born {
		if after.born[key] == born && planned[key] != 1 {
			w.violated("plan", "%s is in %d parts of the plan", key, planned[key])
		}
	}
}

// Manifests and quarantine records that are there and can't be read.
const (
	garbage = iota
	truncated
	tooLong
	rotten
	lastByte // of the frame, where it carries one
	anothersAuthority
	anothersIdentity
	kindsOfDamage
)

// corrupted is what damage makes of a manifest.
func (w *world) corrupted(m accept.Manifest) object {
	o := object{body: m.MarshalWith(w.frames[m.FrameSHA256]), at: w.now}
	switch w.ch.n(kindsOfDamage) {
	case garbage:
		o.body = []byte("{}")
	case truncated:
		o.body = o.body[:len(o.body)/2]
	case tooLong:
		o.body = make([]byte, accept.MaxRecordBytes+1)
	case rotten:
		o.rotten = true
	case lastByte:
		o.body[len(o.body)-1] ^= 0x55
	case anothersAuthority: // a bucket that was copied together
		m.AuthorityID = "authority-3"
		o.body = otherFrame(m).Marshal()
	case anothersIdentity:
		m.Identity.Agent = "agent-9"
		o.body = otherFrame(m).Marshal()
	}
	return o
}

// otherFrame makes the manifest one of another frame.
func otherFrame(m accept.Manifest) accept.Manifest {
	m.FrameSHA256 = identity.Sum([]byte("another"))
	m.RawBlobKey, m.Inline = layout.Blob(m.FrameSHA256, 0), false
	return m
}

// checkDoubt: where the record of a blob can't be read, nothing is deleted. A delete
// of an earlier life may land all the same.
func (w *world) checkDoubt(key string) {
	d, _, err := layout.ParseBlob(key)
	if _, there := w.store.objects[key]; err != nil || !there {
		return
	}
	if _, ok := w.doubt[w.identityOf[d]]; ok || w.doubtful[d] {
		w.violated("doubt", "%s was deleted, and its record can't be read", key)
	}
}

// mend is an operator, who brings the unreadable manifests back from elsewhere.
func (w *world) mend() {
	for _, s := range w.submissions {
		m, ok := w.doubt[s.Identity]
		if !ok || m.FrameSHA256 != s.SHA256 {
			continue
		}
		w.store.put(layout.Accepted(s.Identity), m.MarshalWith(s.Frame), w.now)
		delete(w.doubt, s.Identity)
		w.note("operator", "mends", layout.Accepted(s.Identity), "", nil)
		if !w.store.good(s.SHA256) {
			w.violated("doubt", "the frame of the mended manifest of %s is gone", s.Identity)
		}
	}
}

var _ gc.Store = (*task)(nil)

var _ objstore.Store = (*task)(nil)
