package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"iter"
	"slices"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// world is one schedule: agents, collectors and garbage collections over one store.
type world struct {
	ch     *choices
	store  store
	now    time.Time // of the store
	faults faults
	sticky int
	// spooling: the first collector accepts by its local spool; elsewhere: others do not.
	spooling, elsewhere bool
	landed              bool // at the end, everything
	// indexed: a reconciler takes part.
	indexed bool
	// naming: collectors keep the journal, and most of them name epochs in place of reading markers.
	naming bool
	// retaining: batches are published, and the retention of raw frames takes part.
	retaining bool
	blocks    blocks
	// finalBelow is the threshold of the collector that is asked at the end, from which frames on have blobs.
	finalBelow int
	// authorities: collectors start by claiming the authority, and some are configured wrongly.
	authorities bool

	frames      map[identity.Digest][]byte
	written     map[string]bool // generations that held the right bytes at some time
	submissions []accept.Submission
	agents      []*agent
	collectors  []*process
	tasks       []*task
	last        *task
	late        []request

	clock      int64 // logical, for histories
	attempts   uint64
	operations int
	calls      []*call
	answers    int
	acked      map[identity.Digest]bool
	ackedOrder []identity.Digest
	truth      map[identity.Batch]identity.Digest
	spools     map[identity.Boot]string
	conflicts  []string
	doubt      map[identity.Batch]accept.Manifest // what an unreadable manifest was
	doubtful   map[identity.Digest]bool           // frames with an unreadable quarantine record
	identityOf map[identity.Digest]identity.Batch
	derived    map[string]bool          // derived keys that were there at some time
	everNamed  map[identity.Digest]bool // frames that the journal named at some time
	lost       int                      // how often runs of the journal were lost
	litter     []identity.Digest        // orphans of frames that nobody sends
	released   bool                     // an operator has asked for the release of the collection's breaker

	violation *violation
	digest    uint64
	tracing   bool
	trace     []string
}

// violation of an invariant.
type violation struct{ Invariant, Text string }

func (v *violation) String() string { return v.Invariant + ": " + v.Text }

// request that may land at any later time.
type request struct {
	text  string
	apply func() error
}

// maxSteps is far above what any schedule needs: reaching it is a livelock.
const maxSteps = 20_000

// run plays one schedule to its end and checks every promise.
func run(ch *choices, tracing bool) *world {
	w := &world{
		ch: ch, tracing: tracing, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		store:  store{objects: map[string]object{}},
		frames: map[identity.Digest][]byte{}, acked: map[identity.Digest]bool{}, written: map[string]bool{},
		truth: map[identity.Batch]identity.Digest{}, spools: map[identity.Boot]string{},
		doubt: map[identity.Batch]accept.Manifest{}, doubtful: map[identity.Digest]bool{},
		identityOf: map[identity.Digest]identity.Batch{}, derived: map[string]bool{}, everNamed: map[identity.Digest]bool{},
	}
	w.blocks = blocks{map[identity.Digest]bool{}, map[identity.Digest]bool{}, map[identity.Digest]bool{}}
	w.setup()
	for step := 0; w.violation == nil && w.step(); step++ {
		if step > maxSteps {
			w.violated("progress", "%d steps and no end", step)
		}
	}
	for _, t := range w.tasks {
		t.kill()
	}
	if w.violation == nil {
		w.finish()
	}
	return w
}

// step makes one thing happen; false at the end.
func (w *world) step() bool {
	w.clock++
	if w.retaining && w.ch.oneIn(10) {
		w.publish()
		return true
	}
	switch e := w.ch.n(100); {
	case e < 84:
	case e < 92:
		if len(w.late) > 0 {
			w.land()
			return true
		}
	case e < 93 && w.faults.kills:
		w.killOne()
		return true
	case e < 96 && w.faults.pauses:
		if p := w.anyProcess(); p != nil {
			w.stop(p, 10+w.ch.n(100))
		}
		return true
	case e < 97 && w.faults.jumps:
		if p := w.anyProcess(); p != nil {
			w.jump(p)
		}
		return true
	case e == 98 && w.faults.jumps: // for all: the store's clock as well
		w.now = w.now.Add(40 * time.Minute)
		w.note("sim", "time passes", "", "", nil)
		return true
	case e == 99 && w.indexed:
		w.loseDerived()
		return true
	case e < 98 && w.faults.losses:
		w.loseReply()
		return true
	}
	return w.turn()
}

// turn lets one task go on to its next request, or one agent send.
func (w *world) turn() bool {
	var ready []*task
	paused := false
	for _, t := range w.tasks {
		if t.proc.paused > 0 {
			t.proc.paused--
			paused = true
			continue
		}
		ready = append(ready, t)
	}
	var senders []*agent
	for _, a := range w.agents {
		if w.maySend(a) {
			senders = append(senders, a)
		}
	}
	if len(ready)+len(senders) == 0 {
		return paused
	}
	if w.sticky > 0 && w.last != nil && slices.Contains(ready, w.last) && w.ch.n(1+3*w.sticky) > 0 {
		w.advance(w.last)
		return true
	}
	i := w.ch.n(len(ready) + len(senders))
	if i < len(ready) {
		w.last = ready[i]
		w.advance(ready[i])
	} else {
		w.send(senders[i-len(ready)])
	}
	return true
}

func (w *world) advance(t *task) {
	if _, more := t.next(); !more {
		w.drop(t)
	}
	if t.proc.crashed {
		w.end(t.proc)
	}
}

func (w *world) drop(t *task) {
	if i := slices.Index(w.tasks, t); i >= 0 {
		w.tasks = slices.Delete(w.tasks, i, i+1)
	}
}

// start makes a coroutine that has not run yet.
func (w *world) start(name string, p *process, c *call, body func(*task, context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	t := &task{world: w, name: name, proc: p, cancel: cancel, call: c}
	next, kill := iter.Pull(func(yield func(struct{}) bool) {
		defer cancel()
		t.yield = yield
		body(t, ctx)
	})
	t.next, t.kill = next, func() { kill(); cancel() }
	w.tasks = append(w.tasks, t)
}

func (w *world) anyProcess() *process {
	if len(w.tasks) == 0 {
		return nil
	}
	return w.tasks[w.ch.n(len(w.tasks))].proc
}

// killOne ends a process and all that it was doing. It starts again, empty.
func (w *world) killOne() {
	p := w.anyProcess()
	if p == nil || p.kills == maxKills {
		return
	}
	w.note("sim", "kill -9", p.name, "", nil)
	w.end(p)
}

// end is the end of a process, and its next start.
func (w *world) end(p *process) {
	p.kills++
	p.paused = 0
	for _, t := range slices.Clone(w.tasks) {
		if t.proc == p {
			t.kill()
			w.drop(t)
		}
	}
	w.outage(p)
	p.restart()
}

// land lets a late request take effect.
func (w *world) land() {
	i := w.ch.n(len(w.late))
	r := w.late[i]
	w.late = slices.Delete(w.late, i, i+1)
	err := r.apply()
	w.note("late", r.text, "", "", err)
}

// delete removes a blob and looks at once whether somebody was promised it (I3).
func (w *world) delete(key string) {
	o, there := w.store.objects[key]
	delete(w.store.objects, key)
	d, _, err := layout.ParseBlob(key)
	if err != nil {
		if there && !strings.HasPrefix(key, layout.CondemnedPrefix) && !strings.HasPrefix(key, layout.OrphanReportsPrefix) {
			w.violated("I3", "a delete of the record %s", key)
		}
		return
	}
	if !there || !w.acked[d] || identity.Sum(o.body) != d || w.readable(d) {
		return
	}
	switch {
	case !w.blocks.removed[d], !w.holds(d):
		w.violated("I3", "%s was deleted, an answer depends on it, and no other generation is good", key)
	case !w.logged(d):
		w.violated("log", "%s was deleted, and no log says why", key)
	}
}

func (w *world) violated(invariant, format string, args ...any) {
	if w.violation == nil {
		w.violation = &violation{invariant, readable().Replace(fmt.Sprintf(format, args...))}
		w.note("VIOLATION", w.violation.String(), "", "", nil)
	}
}

// note is one line of the trace; its hash is what a replay must reproduce.
func (w *world) note(who, what, key, how string, err error) {
	h := fnv.New64a()
	var b [8]byte
	for i := range b {
		b[i] = byte(w.digest >> (8 * i))
	}
	h.Write(b[:])
	result := outcome(err)
	for _, s := range [...]string{who, what, key, how, result} {
		h.Write([]byte(s))
		h.Write(b[:1])
	}
	w.digest = h.Sum64()
	if w.tracing {
		w.trace = append(w.trace, readable().Replace(fmt.Sprintf("%-8s %s %s -> %s%s", who, what, key, how, result)))
	}
}
