package publish

import (
	"time"

	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
)

// Phase of a publication, for durations.
type Phase string

// Phases.
const (
	PhaseCheck   Phase = "check"
	PhasePrepare Phase = "prepare"
	PhaseRefer   Phase = "refer"
	PhaseCommit  Phase = "commit"
	PhasePromote Phase = "promote"
)

// Skip says why a generation of an object was skipped.
type Skip string

// Skips.
const (
	SkipCorrupt   Skip = "corrupt"   // the object is there with other bytes
	SkipGone      Skip = "gone"      // the create said that it exists, the check that it does not
	SkipCondemned Skip = "condemned" // its reference record is condemned
)

// Outcome of a publication, for counting.
type Outcome string

// Outcomes.
const (
	OutcomeCommitted Outcome = "committed" // by this call
	OutcomeFound     Outcome = "found"     // the same transaction had committed
	OutcomeConflict  Outcome = "conflict"
	OutcomeAborted   Outcome = "aborted"
	OutcomeFenced    Outcome = "fenced"
	OutcomeUndecided Outcome = "undecided"
	OutcomeFailed    Outcome = "failed" // nothing was committed by this call
)

// Events are calls at points of interest, for metrics and logs. Nil fields are skipped.
// Calls are synchronous and concurrent: they must be quick and safe for that.
type Events struct {
	// Published: a publication ended.
	Published func(n catalog.Name, o Outcome, err error)
	// Phase of a publication ended, after took by the clock.
	Phase func(p Phase, took time.Duration)
	// ObjectCreated: this call wrote the object.
	ObjectCreated func(key string, bytes int)
	// ObjectExists: the object was there already with the right bytes.
	ObjectExists func(key string)
	// GenerationSkipped: the object can't be relied on; the next generation is tried.
	GenerationSkipped func(key string, why Skip)
	// Queued: keys were put on the delayed queue; err when they could not be.
	Queued func(reason string, keys int, err error)
	// AbortedTxn: the collector made sure that the transaction can never commit.
	AbortedTxn func(t Txn)
	// Collected: the collector decided about a key.
	Collected func(e Entry)
}

func (e *Events) published(n catalog.Name, o Outcome, err error) {
	if e.Published != nil {
		e.Published(n, o, err)
	}
}

func (e *Events) phase(p Phase, took time.Duration) {
	if e.Phase != nil {
		e.Phase(p, took)
	}
}

func (e *Events) objectCreated(key string, n int) {
	if e.ObjectCreated != nil {
		e.ObjectCreated(key, n)
	}
}

func (e *Events) objectExists(key string) {
	if e.ObjectExists != nil {
		e.ObjectExists(key)
	}
}

func (e *Events) generationSkipped(key string, why Skip) {
	if e.GenerationSkipped != nil {
		e.GenerationSkipped(key, why)
	}
}

func (e *Events) queued(reason string, keys int, err error) {
	if e.Queued != nil {
		e.Queued(reason, keys, err)
	}
}

func (e *Events) abortedTxn(t Txn) {
	if e.AbortedTxn != nil {
		e.AbortedTxn(t)
	}
}

func (e *Events) collected(x Entry) {
	if e.Collected != nil {
		e.Collected(x)
	}
}
