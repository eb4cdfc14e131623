package ownership

import (
	"errors"
	"slices"
	"time"

	"lightmetrics.dev/lightmetrics/internal/shard"
)

// RebalanceDelay says how long shards do not move after the workers have changed.
type RebalanceDelay struct {
	// QuietPeriod is how long no worker may have come or gone before shards move.
	QuietPeriod time.Duration
	// MaxDelay is the longest wait while workers keep coming and going.
	MaxDelay time.Duration
}

// Validate checks ranges.
func (d RebalanceDelay) Validate() error {
	if d.QuietPeriod < 0 || d.MaxDelay < d.QuietPeriod {
		return errors.New("rebalance: quiet_period must not be negative, max_delay not less than quiet_period")
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
	delay RebalanceDelay

	begun    bool
	seen     []string  // eligible workers at the last step
	draining []string  // workers that drain, at the last step
	applied  []string  // eligible workers at the last change, nil before the first step
	changed  time.Time // when seen last changed
	waiting  time.Time // since when seen differs from the workers for which the targets were made; zero when it does not
}

// NewMachine makes a machine without any observation.
func NewMachine(d RebalanceDelay) *Machine { return &Machine{delay: d} }

// Step decides. now must never go back. v is not kept.
func (m *Machine) Step(now time.Time, v View) Decision {
	eligible, draining := Eligible(v.Workers), drained(v.Workers)
	urgent := m.begun && !subset(draining, m.draining) // a worker asked to leave, and waits for its shards to move
	// A new leader does not know since when the workers are the same, and so waits a whole quiet period.
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
		// Also when workers came and went again: the next change then waits from its own beginning.
		m.applied, m.waiting = eligible, time.Time{}
	default:
		if m.waiting.IsZero() {
			m.waiting = now
		}
		due := m.changed.Add(m.delay.QuietPeriod)
		// Workers that keep coming and going must not delay a change without end.
		if latest := m.waiting.Add(m.delay.MaxDelay); latest.Before(due) {
			due = latest
		}
		if now.Before(due) && !urgent {
			// Grants by the present targets are made all the same: only moves wait.
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
