package ledger

import (
	"errors"
	"fmt"
	"time"
)

// State is how far the file of a row is.
type State uint8

// States. The values are stored.
const (
	// Staged: the file is wanted, and not there, or not known to be.
	Staged State = 1
	// Uploading: a worker writes it.
	Uploading State = 2
	// Uploaded: it was written, and its place said so; it was not read back.
	Uploaded State = 3
	// Verifying: a worker reads it back.
	Verifying State = 4
	// Durable: it was read back from its place, and is whole.
	Durable State = 5
	// Failed: tried too often. An operator looks at it, or the file turns up.
	Failed State = 6
	// Removing: it is no longer wanted. The row goes when the place has said that the file is gone.
	Removing State = 7
)

// States lists all of them in the order of a file's life.
func States() []State {
	return []State{Staged, Uploading, Uploaded, Verifying, Durable, Failed, Removing}
}

func (s State) valid() bool { return s >= Staged && s <= Removing }

func (s State) String() string {
	switch s {
	case Staged:
		return "staged"
	case Uploading:
		return "uploading"
	case Uploaded:
		return "uploaded"
	case Verifying:
		return "verifying"
	case Durable:
		return "durable"
	case Failed:
		return "failed"
	case Removing:
		return "removing"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Readable reports whether a file in this state may be read from: it is there as far as the ledger
// knows. A reader verifies it in any case.
func (s State) Readable() bool { return s == Uploaded || s == Verifying || s == Durable }

// Event is what happened to a file.
type Event uint8

// Events.
const (
	Begin   Event = iota + 1 // a worker begins to write
	Wrote                    // the place has taken the file
	Check                    // a worker begins to read it back
	Found                    // it was read back and is whole; also of a file that a listing found and a scrub read
	Retry                    // the step did not succeed, and may later: back to the ready state before it
	Lost                     // the file is not there, or is damaged
	GiveUp                   // tried too often
	Redrive                  // an operator wants it tried again
	Drop                     // the file is no longer wanted
	Turned                   // a listing found the file: it is there, and was not read back
)

func (e Event) String() string {
	if n := [...]string{"", "begin", "wrote", "check", "found", "retry", "lost", "give up", "redrive", "drop", "turned up"}; int(e) < len(n) {
		return n[e]
	}
	return fmt.Sprintf("event %d", uint8(e))
}

// ErrTransition: the event cannot happen in the row's state.
var ErrTransition = errors.New("the step does not follow on the state of the row")

// steps is the state machine: what each event makes of each state.
var steps = map[Event]map[State]State{
	Begin: {Staged: Uploading},
	Wrote: {Uploading: Uploaded},
	Check: {Uploaded: Verifying},
	Found: {Verifying: Durable, Durable: Durable},
	Retry: {Uploading: Staged, Verifying: Uploaded},
	// A file that was never seen cannot be lost: a worker may be writing it now.
	Lost:   {Uploaded: Staged, Verifying: Staged, Durable: Staged},
	GiveUp: {Staged: Failed, Uploading: Failed, Uploaded: Failed, Verifying: Failed},
	// What failed is written again; if the file is there, the place says so.
	Redrive: {Failed: Staged},
	Drop:    {Staged: Removing, Uploading: Removing, Uploaded: Removing, Verifying: Removing, Durable: Removing, Failed: Removing},
	Turned:  {Staged: Uploaded, Failed: Uploaded},
}

// Next gives the row after an event. Its version is still the one before: the ledger gives it another.
func (r Row) Next(e Event, now time.Time, cause error) (Row, error) {
	to, ok := steps[e][r.State]
	if !ok {
		return r, fmt.Errorf("%w: %s of %s, which is %s", ErrTransition, e, r.Key, r.State)
	}
	r.Error = ""
	if cause != nil {
		r.Error = cause.Error()
		r.Error = r.Error[:min(len(r.Error), maxError)]
	}
	if to != r.State {
		r.Changed = now.UnixNano()
	}
	switch e {
	case Found:
		r.Verified, r.Lost = now.UnixNano(), false
	case Lost:
		r.Lost = true
	case Drop:
		r.Lost = false
	}
	if to == Staged {
		r.Checksum, r.Verified = 0, 0
	}
	r.State = to
	return r, nil
}

// Stuck reports whether a worker has had the row for longer than a lease, and is taken for dead. With a negative lease
// every worker is.
func (r Row) Stuck(now time.Time, lease time.Duration) bool {
	return (r.State == Uploading || r.State == Verifying) && (lease < 0 || r.Age(now) > lease)
}
