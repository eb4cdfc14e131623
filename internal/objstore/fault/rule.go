package fault

import (
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// Kind is the fault of an operation that a rule matches.
type Kind uint8

// Kinds.
const (
	// Before fails with Err and does not pass the operation to the store.
	Before Kind = iota + 1
	// After applies the operation and then fails with Err: the answer is lost.
	After
	// Zombie delays a write and fails with Err; Release applies it later.
	Zombie
	// Hang waits for the context to end and never applies the operation.
	Hang
	// Hold waits until Gate is closed and then applies the operation, or until the context ends.
	Hold
)

// Rule matches operations and injects a fault. Of several matching rules
// the first is used.
type Rule struct {
	Op     string // "get", "create", …; "" is every operation, "write" and "read" are halves
	Prefix string // of the key, or of a listing's prefix
	Skip   int    // let this many matches pass first
	Times  int    // then act this often; 0 is forever
	// Chance acts on this share of the matches, by the store's seed; 0 acts on all.
	Chance float64
	Kind   Kind
	// Err is a sentinel of objstore; nil is ErrUnknown for writes, ErrUnavailable for reads.
	Err  error
	Gate <-chan struct{} // for Hold
}

// LostAnswer applies the operation and answers unknown.
func LostAnswer(op, prefix string) Rule { return Rule{Op: op, Prefix: prefix, Kind: After} }

// NotApplied applies nothing and answers unknown, or unavailable to a read.
func NotApplied(op, prefix string) Rule { return Rule{Op: op, Prefix: prefix, Kind: Before} }

// Delayed answers unknown and keeps the write for Release.
func Delayed(op, prefix string) Rule { return Rule{Op: op, Prefix: prefix, Kind: Zombie} }

// Refused fails with err, such as objstore.ErrConflict or objstore.ErrDenied, and applies nothing.
func Refused(op, prefix string, err error) Rule {
	return Rule{Op: op, Prefix: prefix, Kind: Before, Err: err}
}

// Once limits the rule to one use.
func (r Rule) Once() Rule { r.Times = 1; return r }

// Nth limits the rule to the nth match, counted from 1.
func (r Rule) Nth(n int) Rule { r.Skip, r.Times = n-1, 1; return r }

func (r *Rule) matches(op, key string) bool {
	switch r.Op {
	case "", op:
	case "write":
		if !isWrite(op) {
			return false
		}
	case "read":
		if isWrite(op) {
			return false
		}
	default:
		return false
	}
	return strings.HasPrefix(key, r.Prefix)
}

func (r *Rule) err(op string) error {
	switch {
	case r.Err != nil:
		return r.Err
	case isWrite(op):
		return objstore.ErrUnknown
	}
	return objstore.ErrUnavailable
}

func isWrite(op string) bool {
	switch op {
	case "create", "replace", "put", "delete":
		return true
	}
	return false
}
