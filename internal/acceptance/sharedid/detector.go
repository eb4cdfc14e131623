// Package sharedid finds agent ids that several machines use at once, from accepted batches: a
// cloned machine whose queue began a boot of its own, or one agent id in two settings.
//
// Boots of one agent follow each other. What the earlier one still has queued is sent while
// the next one begins, but its samples are older. So two boots that both send samples of the same
// minutes, and send them within minutes of each other, are on two machines. A restart gives at
// most a minute that both have; a clock that is set back across a restart gives more, but then the
// two were accepted as far apart as the clock was set.
//
// The result does not depend on the order in which batches are found. The package is pure: no
// goroutines, no clock. A Detector is safe for concurrent use.
package sharedid

import (
	"slices"
	"sync"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const (
	// minutes of samples that are remembered of a boot, back from its newest.
	minutes = 32
	// common minutes that make two boots concurrent, accepted at most within apart.
	common = 5
	within = 2 * time.Minute
	// fresh bounds the time between a batch's newest sample and its acceptance: what was queued
	// for longer says nothing about who is alive now, and a clock that is further off is not compared.
	fresh = 10 * time.Minute
	// alive is how long after its last acceptance a boot counts.
	alive = 10 * time.Minute
	// kept boots of one agent: those with the newest samples.
	kept = 8
)

// Detector watches the batches of all agents. Memory follows the agents that had one accepted lately.
type Detector struct {
	mu      sync.Mutex
	agents  map[string]*agent
	several map[string]*agent // those with more than one boot
	swept   int               // agents that were left by the last sweep
}

// agent has its boots, in no order.
type agent struct {
	boots  []*boot
	shared bool // the last Add found concurrent boots
}

// boot has, for each of the last minutes of samples, when the first batch of it was accepted.
type boot struct {
	id       string
	newest   int64 // minute
	accepted [minutes]int64
	last     int64 // acceptance, Unix nanoseconds
}

// New makes a Detector that has seen nothing.
func New() *Detector {
	return &Detector{agents: map[string]*agent{}, several: map[string]*agent{}}
}

// Batch is what a manifest says; times are Unix nanoseconds.
type Batch struct {
	Boot             identity.Boot
	AcceptedAt       int64
	MinTime, MaxTime int64 // of the samples
}

// Add counts a batch in; one that was added before changes nothing. It gives the boots that are
// concurrent, in order, when the agent just came to have some.
func (d *Detector) Add(now time.Time, b Batch) (began []string) {
	if old(now, b.AcceptedAt) || time.Duration(b.AcceptedAt-b.MaxTime).Abs() > fresh {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sweep(now)
	a := d.agents[b.Boot.Agent]
	if a == nil {
		a = &agent{}
		d.agents[b.Boot.Agent] = a
	}
	x := a.boot(b.Boot.Boot, minuteOf(b.MaxTime))
	if x == nil {
		return nil
	}
	for m := minuteOf(max(b.MinTime, b.MaxTime-int64(fresh))); m <= minuteOf(b.MaxTime); m++ {
		x.see(m, b.AcceptedAt)
	}
	x.last = max(x.last, b.AcceptedAt)
	if len(a.boots) > 1 {
		a.boots = slices.DeleteFunc(a.boots, func(b *boot) bool { return old(now, b.last) })
	}
	if len(a.boots) < 2 {
		a.shared = false
		delete(d.several, b.Boot.Agent)
		return nil
	}
	d.several[b.Boot.Agent] = a
	found := a.concurrent(now)
	was := a.shared
	if a.shared = len(found) > 0; a.shared && !was {
		return found
	}
	return nil
}

// old acceptances are forgotten.
func old(now time.Time, acceptedAt int64) bool {
	return now.Sub(time.Unix(0, acceptedAt)) > minutes*time.Minute
}

func minuteOf(ns int64) int64 { return ns / int64(time.Minute) }

// boot finds or adds one; nil when it is older than all that are kept.
func (a *agent) boot(id string, minute int64) *boot {
	for _, b := range a.boots {
		if b.id == id {
			return b
		}
	}
	b := &boot{id: id, newest: minute}
	if len(a.boots) < kept {
		a.boots = append(a.boots, b)
		return b
	}
	oldest := slices.MinFunc(a.boots, func(x, y *boot) int { return int(x.newest - y.newest) })
	if oldest.newest >= minute {
		return nil
	}
	a.boots[slices.Index(a.boots, oldest)] = b
	return b
}

// see notes a minute: minutes from before the first are in its place of the ring, and go.
func (b *boot) see(minute, acceptedAt int64) {
	if minute > b.newest {
		for m := max(b.newest+1, minute-minutes+1); m < minute; m++ {
			b.accepted[slot(m)] = 0
		}
		b.accepted[slot(minute)] = 0
		b.newest = minute
	}
	if minute <= b.newest-minutes {
		return
	}
	if at := &b.accepted[slot(minute)]; *at == 0 || acceptedAt < *at {
		*at = acceptedAt
	}
}

func slot(minute int64) int { return int(((minute % minutes) + minutes) % minutes) }

// concurrent reports that b and o send samples of the same minutes at the same time.
func (b *boot) concurrent(o *boot) bool {
	n := 0
	for m := max(b.newest, o.newest) - minutes + 1; m <= min(b.newest, o.newest); m++ {
		x, y := b.accepted[slot(m)], o.accepted[slot(m)]
		if x != 0 && y != 0 && time.Duration(x-y).Abs() <= within {
			n++
		}
	}
	return n >= common
}

// concurrent gives the boots that are alive and concurrent with another one, in order.
func (a *agent) concurrent(now time.Time) []string {
	if len(a.boots) < 2 {
		return nil
	}
	var found []string
	for _, b := range a.boots {
		if slices.ContainsFunc(a.boots, func(o *boot) bool { return o != b && b.alive(now) && o.alive(now) && b.concurrent(o) }) {
			found = append(found, b.id)
		}
	}
	slices.Sort(found)
	return found
}

func (b *boot) alive(now time.Time) bool { return now.Sub(time.Unix(0, b.last)) <= alive }

// sweep drops agents that had nothing accepted lately, whenever their number has doubled.
func (d *Detector) sweep(now time.Time) {
	if len(d.agents) < max(1024, 2*d.swept) {
		return
	}
	for id, a := range d.agents {
		if !slices.ContainsFunc(a.boots, func(b *boot) bool { return !old(now, b.last) }) {
			delete(d.agents, id)
			delete(d.several, id)
		}
	}
	d.swept = len(d.agents)
}

// Shared is an agent id that several machines use.
type Shared struct {
	Agent string
	Boots []string // in order
}

// All gives the agent ids that several machines use at now, in order.
func (d *Detector) All(now time.Time) []Shared {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []Shared
	for id, a := range d.several {
		if boots := a.concurrent(now); len(boots) > 0 {
			out = append(out, Shared{id, boots})
		}
	}
	slices.SortFunc(out, func(a, b Shared) int {
		if a.Agent < b.Agent {
			return -1
		}
		return 1
	})
	return out
}

// With gives the other boots of the agent that are concurrent with this one, in order.
func (d *Detector) With(b identity.Boot, now time.Time) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.agents[b.Agent]
	if a == nil {
		return nil
	}
	i := slices.IndexFunc(a.boots, func(x *boot) bool { return x.id == b.Boot })
	if i < 0 || !a.boots[i].alive(now) {
		return nil
	}
	var out []string
	for _, o := range a.boots {
		if o != a.boots[i] && o.alive(now) && o.concurrent(a.boots[i]) {
			out = append(out, o.id)
		}
	}
	slices.Sort(out)
	return out
}
