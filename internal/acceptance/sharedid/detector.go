// Package sharedid detects, from accepted batches, agent ids that several machines use at once: a
// cloned machine whose queue started its own boot, or one agent id in the settings of two machines.
//
// Boots of one agent follow each other. What is left in the queue of the earlier boot is sent while
// the next one starts, but its samples are older. So two boots that both send samples of the same
// minutes, and send them within minutes of each other, run on two machines. After a restart the
// two have at most one minute in common. A clock that is set back across a restart gives more
// common minutes, but then their acceptances are as far apart as the clock was set.
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
	// minutes of samples that are kept of a boot, back from its newest.
	minutes = 32
	// common minutes that make two boots concurrent, accepted at most within apart.
	common = 5
	within = 2 * time.Minute
	// fresh bounds the time between a batch's newest sample and its acceptance: a batch that was queued
	// for longer does not show which machines run now, and a clock that is further off can't be compared.
	fresh = 10 * time.Minute
	// alive is how long after its last acceptance a boot counts as running.
	alive = 10 * time.Minute
	// kept bounds the boots of one agent; those with the newest samples stay.
	kept = 8
)

// Detector watches the batches of all agents. Memory follows the agents that had one accepted lately.
type Detector struct {
	mu      sync.Mutex
	agents  map[string]*agent
	several map[string]*agent // those with more than one boot
	swept   int               // agents that remained after the last sweep
}

// agent is the recent boots of one agent id, in no order.
type agent struct {
	boots  []*boot
	shared bool // the last Add found concurrent boots
}

// boot has, for each recent minute of samples, when the first batch with samples of it was accepted.
type boot struct {
	id       string
	newest   int64          // minute
	accepted [minutes]int64 // a ring, indexed by slot; Unix nanoseconds, 0 is none
	last     int64          // acceptance, Unix nanoseconds
}

// New makes a Detector that has seen nothing.
func New() *Detector {
	return &Detector{agents: map[string]*agent{}, several: map[string]*agent{}}
}

// Batch is the part of a manifest that the detector needs; times are Unix nanoseconds.
type Batch struct {
	Boot             identity.Boot
	AcceptedAt       int64
	MinTime, MaxTime int64 // of the samples
}

// Add adds a batch; one that was added before changes nothing. It returns the concurrent boots of
// the agent, sorted, when this batch is the first to show that there are any.
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
	// The cut bounds the loop: a batch with one old sample would otherwise span years.
	for m := minuteOf(max(b.MinTime, b.MaxTime-int64(fresh))); m <= minuteOf(b.MaxTime); m++ {
		x.record(m, b.AcceptedAt)
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
	// Only agents with several boots are ever compared: almost all have one, so All stays cheap.
	found := a.concurrent(now)
	// Only the change is returned, so that a caller can log it once and not for every batch.
	was := a.shared
	if a.shared = len(found) > 0; a.shared && !was {
		return found
	}
	return nil
}

// old reports whether an acceptance is so long ago that it no longer counts.
func old(now time.Time, acceptedAt int64) bool {
	return now.Sub(time.Unix(0, acceptedAt)) > minutes*time.Minute
}

func minuteOf(ns int64) int64 { return ns / int64(time.Minute) }

// boot finds or adds a boot. It returns nil when kept boots with newer samples are there already.
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

// record notes when samples of a minute were first accepted. A newer minute takes the ring slots
// of minutes that are now too old.
func (b *boot) record(minute, acceptedAt int64) {
	if minute > b.newest {
		// The minutes in between had no samples: without this their slots would still show
		// acceptances of a whole ring earlier.
		for m := max(b.newest+1, minute-minutes+1); m < minute; m++ {
			b.accepted[slot(m)] = 0
		}
		b.accepted[slot(minute)] = 0
		b.newest = minute
	}
	if minute <= b.newest-minutes {
		return
	}
	// The earliest acceptance counts, so that the result does not depend on the order of calls.
	if at := &b.accepted[slot(minute)]; *at == 0 || acceptedAt < *at {
		*at = acceptedAt
	}
}

// slot is the minute's place in the ring; minutes before 1970 are negative, and so is their remainder.
func slot(minute int64) int { return int(((minute % minutes) + minutes) % minutes) }

// concurrent reports whether b and o send samples of the same minutes at the same time.
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

// concurrent returns the ids of the running boots that are concurrent with another one, sorted.
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

// sweep drops agents without a recent acceptance. It runs when their number has doubled since the last sweep, so that its cost per Add is constant on average.
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
	Boots []string // sorted
}

// All returns the agent ids that several machines use at now, sorted.
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

// With returns the other boots of the agent that are concurrent with this one, sorted.
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
