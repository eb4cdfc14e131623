// Package sizing decides how an hour is fitted into the memory that a job may take: in how
// many parts it is built, and, where no number of parts helps, which agents are set aside for
// that hour. It is pure.
package sizing

import (
	"slices"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/rollups/rollup"
)

// A plan says in how many parts its hour is built, before anybody knows how many series there
// are. Where a part takes more than a job may, or killed its worker, the generation is aborted
// and the next one has the same inputs in more parts.

const (
	// recordBytes is about what a raw record takes at least while its hour is built, where a
	// series has many: times and values as they came and as they leave, and a part of the encoder.
	recordBytes = 48
	// spareQuarters is how many quarters of its estimate a resized hour gets: estimates are off
	// by some percent, and so are the sizes of parts.
	spareQuarters = 5
	// moreParts is the least factor by which the parts of a generation that did not fit grow,
	// manyParts that of one that killed its worker, of which no estimate is worth anything.
	moreParts = 2
	manyParts = 4
	// largeShare of what an hour may take makes an agent large. Where an hour does not fit
	// because of many small agents, it is built in more parts than MaxParts instead: setting a
	// few of them aside would not help, and no one of them is the cause.
	largeShare = 8
)

// Limits are the bounds of a job.
type Limits struct {
	// Memory in bytes that one part may take.
	Memory int64
	// MaxParts that an hour is built in before large agents are set aside.
	MaxParts uint32
}

// Hour is about the memory that all parts of an hour may take together.
func (l Limits) Hour() int64 { return l.Memory * int64(l.MaxParts) }

// Parts of an hour of so many records. perRecord is the memory that a record of the shard took
// lately, 0 when that is not known.
func (l Limits) Parts(records uint64, perRecord float64) uint32 {
	least := (records*recordBytes + uint64(l.Memory) - 1) / uint64(l.Memory)
	return min(max(bounded(int64(least)), l.partsOf(int64(perRecord*float64(records)))), l.MaxParts)
}

// partsOf is how many parts a cost needs, with something to spare.
func (l Limits) partsOf(cost int64) uint32 {
	return bounded((cost/4*spareQuarters + l.Memory - 1) / l.Memory)
}

func bounded(parts int64) uint32 { return uint32(min(max(parts, 1), rollup.MaxParts)) }

// Attempt is a generation that did not fit.
type Attempt struct {
	// Parts that it had.
	Parts uint32
	// Died: a worker was killed while it made the generation. Else a part took too much memory.
	Died bool
	// Sizes of the inputs by agent, the largest first, as a survey of the frames estimates them.
	Sizes []rollup.Size
	// Inputs of its plan, and which of them a block holds.
	Inputs []accepted.Batch
	Held   func(accepted.Batch) bool
	// KeepAll: no agent may be left out, because nothing but the plan knows the inputs.
	KeepAll bool
}

// Total is the estimate of all agents together.
func (a Attempt) Total() (bytes int64) {
	for _, z := range a.Sizes {
		bytes += z.Bytes
	}
	return bytes
}

// Decision is how the next generation is made.
type Decision struct {
	Parts uint32
	// SetAside are the agents to leave out, and Bytes the estimate of the others.
	SetAside []rollup.Size
	Bytes    int64
}

// Resize decides how the generation after a is made; false when no plan could make it fit
// better than a did.
func (l Limits) Resize(a Attempt) (Decision, bool) {
	d := Decision{Bytes: a.Total()}
	factor := uint32(moreParts)
	if a.Died {
		factor = manyParts
	}
	d.Parts = max(l.partsOf(d.Bytes), a.Parts*factor)
	if d.Parts <= l.MaxParts {
		return d, true
	}
	if !a.KeepAll {
		d.SetAside, d.Bytes = l.choose(a, d.Bytes)
	}
	if len(d.SetAside) > 0 {
		d.Parts = l.partsOf(d.Bytes)
	}
	d.Parts = min(d.Parts, rollup.MaxParts)
	return d, len(d.SetAside) > 0 || d.Parts != a.Parts
}

// choose gives the agents to set aside, the largest first, until the others fit, and what is
// left of the total.
func (l Limits) choose(a Attempt, total int64) (out []rollup.Size, left int64) {
	all, fresh := map[string]uint64{}, map[string]uint64{}
	for _, e := range a.Inputs {
		all[e.Agent] += e.FrameBytes
		if !a.Held(e) {
			fresh[e.Agent] += e.FrameBytes
		}
	}
	for _, z := range a.Sizes {
		// What a block holds of an agent can't be left out: the next generation would lose it. And
		// those that the survey did not distinguish have no name, so that nothing is theirs.
		if fresh[z.Agent] == 0 {
			continue
		}
		fits := l.partsOf(total) <= l.MaxParts
		mine := int64(float64(z.Bytes) * float64(fresh[z.Agent]) / float64(all[z.Agent]))
		// A worker that was killed shows that the estimates are wrong, so the largest agent goes
		// whatever they say.
		if len(out) == 0 && a.Died || !fits && mine >= l.Hour()/largeShare {
			out = append(out, z)
			total -= mine
		}
	}
	return out, total
}

// Keep gives the inputs without those of agents that are set aside, but with what a block
// holds of them.
func (a Attempt) Keep(setAside func(agent string) bool) []accepted.Batch {
	return slices.DeleteFunc(slices.Clone(a.Inputs), func(e accepted.Batch) bool { return setAside(e.Agent) && !a.Held(e) })
}
