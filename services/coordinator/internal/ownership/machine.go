package ownership

import (
	"errors"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
)

// Settle says how long the workers must stay the same before shards move.
type Settle struct {
	// Quiet is how long nothing may have changed.
	Quiet time.Duration
	// Most is the longest wait while workers keep coming and going.
	Most time.Duration
}

// Validate checks ranges.
func (s Settle) Validate() error {
	if s.Quiet < 0 || s.Most < s.Quiet {
		return errors.New("settle: quiet must not be negative, most not less than quiet")
	}
	return nil
}

// Decision says what to do now.
type Decision struct {
	// Change of the assignment; nil is none.
	Change *Change
	// Grants that may be made, by the targets after Change.
	Grants []Grantee
	// Wake is when to decide again even if nothing has changed; zero is never.
	Wake time.Time
}

// Change of an assignment.
type Change struct {
	Targets []string
	// Joined and Left are the workers that became eligible, or are no longer, since the last change or since the
	// machine was made.
	Joined, Left []string
	Workers      int
	Moved        []shard.ID
}

// Machine turns observations into decisions. Its only state is what waits for the quiet period: losing it delays a
// change by one such period and moves nothing.
type Machine struct {
	settle Settle

	begun    bool
	seen     []string  // eligible workers at the last step
	draining []string  // workers that drain, at the last step
	applied  []string  // eligible workers at the last change, nil before the first step
	changed  time.Time // when seen last changed
	waiting  time.Time // since when seen differs from the workers for which the targets were made; zero when it does not
}

// NewMachine makes a machine without any observation.
func NewMachine(s Settle) *Machine { return &Machine{settle: s} }

// Step decides. now must never go back. v is not kept.
func (m *Machine) Step(now time.Time, v View) Decision {
	eligible, draining := Eligible(v.Workers), drained(v.Workers)
	urgent := m.begun && !subset(draining, m.draining) // a worker asked to leave, and waits for its shards to move
	if !m.begun || !slices.Equal(eligible, m.seen) {
		m.changed = now
	}
	if !m.begun {
		// The targets were made for the workers that own shards now, by an earlier leader.
		m.applied = owners(v.Targets)
	}
	m.begun, m.seen, m.draining = true, eligible, draining

	var d Decision
	next := Assign(v.Targets, eligible)
	switch {
	case slices.Equal(next, v.Targets):
		m.applied, m.waiting = eligible, time.Time{}
	default:
		if m.waiting.IsZero() {
			m.waiting = now
		}
		due := m.changed.Add(m.settle.Quiet)
		// Workers that keep coming and going must not delay a change without end.
		if most := m.waiting.Add(m.settle.Most); most.Before(due) {
			due = most
		}
		if now.Before(due) && !urgent {
			d.Wake = due
			break
		}
		d.Change = &Change{
			Targets: next, Workers: len(eligible), Moved: Moved(v.Targets, next),
			Joined: without(eligible, m.applied), Left: without(m.applied, eligible),
		}
		v.Targets = next
		m.applied, m.waiting = eligible, time.Time{}
	}
	d.Grants = Due(v)
	return d
}

func owners(targets []string) []string {
	var out []string
	for _, w := range targets {
		if w != "" {
			out = append(out, w)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func drained(ws []Worker) []string {
	var ids []string
	for id, w := range Current(ws) {
		if w.Draining {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// subset reports whether all of a is in b, which is sorted.
func subset(a, b []string) bool { return len(without(a, b)) == 0 }

// without returns the elements of a that are not in b, which is sorted.
func without(a, b []string) []string {
	var out []string
	for _, x := range a {
		if _, ok := slices.BinarySearch(b, x); !ok {
			out = append(out, x)
		}
	}
	return out
}
