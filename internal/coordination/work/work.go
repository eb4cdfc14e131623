// Package work is pending work: a queue that delivers jobs at least once, a table of
// pending jobs that makes repeats harmless, keeps their order and remembers their
// progress, and the state machine of a worker over both. It has no goroutines and no
// clock of its own. Back ends: mem (tests, one process), and the coordinator, which keeps
// both in etcd (internal/coordination/coordinator). All pass internal/coordination/work/worktest. docs/protocol/work.md says
// what is relied on and why it is safe.
package work

import (
	"errors"
	"fmt"
)

// Decisions that callers branch on. Every error of a back end wraps exactly one of
// these, or is a context error that wraps ErrUnknown for a change.
var (
	// ErrExists of Create: the row is there; someone was faster, or the message is a duplicate.
	ErrExists = errors.New("row exists")
	// ErrCompleted of Create: the number is at or below the last completed one of its log.
	ErrCompleted = errors.New("completed already")
	// ErrLive of Claim: another owner holds the row and its hold has not run out.
	ErrLive = errors.New("held by a live owner")
	// ErrMoved: the row is not as the caller knew it, or gone. Whoever worked on it must stop.
	ErrMoved = errors.New("row moved on")
	// ErrFenced: the row has a greater fence than the caller.
	ErrFenced = errors.New("fenced")
	// ErrNotFound: no such row, log or dead letter.
	ErrNotFound = errors.New("not found")
	// ErrGone: the delivery is not the caller's any more: it ran out, or the message is deleted.
	ErrGone = errors.New("delivery is gone")
	// ErrFull: the topic has as many messages as it may have. Nothing was sent.
	ErrFull = errors.New("topic is full")
	// ErrInvalid: the request can never succeed.
	ErrInvalid = errors.New("invalid request")
	// ErrUnknown: a change may have been made, or may be made at any later time. Resolve
	// by reading back; sending again at worst doubles a message, which is harmless.
	ErrUnknown = errors.New("outcome unknown")
	// ErrUnavailable: nothing was changed, and a later try can succeed.
	ErrUnavailable = errors.New("unavailable")
)

// Error carries the operation and key of a failed request. Err wraps one of the sentinels.
type Error struct {
	Op  string // "send", "receive", "claim", "checkpoint", …
	Key string // topic, topic and message, or log and number
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("work: %s %q: %v", e.Op, e.Key, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Limits of both interfaces; every back end refuses more with ErrInvalid.
const (
	// MaxBody and MaxState bound a message and a checkpoint, in bytes.
	MaxBody  = 64 << 10
	MaxState = 64 << 10
	// MaxResult bounds the last state of a completed job that its log keeps, in bytes.
	MaxResult = 1 << 10
	// MaxTopic bounds a topic's name: letters, digits, "-" and "_".
	MaxTopic = 64
	// MaxName bounds a log's name, an owner and a dedupe key, in bytes.
	MaxName = 200
	// MaxReceive is the most messages of one Receive.
	MaxReceive = 10
	// MaxPage is the most entries of a page, which then has at most 13 MiB.
	MaxPage = 100
	// MaxReasonBytes bounds the reason of a dead letter; longer ones are cut.
	MaxReasonBytes = 1024
)

func invalid(op, key, format string, args ...any) error {
	return &Error{Op: op, Key: key, Err: fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))}
}

// plain reports whether s consists of letters, digits and the extra characters, and has 1 to limit bytes.
func plain(s, extra string, limit int) bool {
	if s == "" || len(s) > limit {
		return false
	}
	// By byte: anything outside of ASCII is refused, as keys of back ends are made of these names.
	for i := range len(s) {
		c := s[i]
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		for j := range len(extra) {
			ok = ok || c == extra[j]
		}
		if !ok {
			return false
		}
	}
	return true
}
