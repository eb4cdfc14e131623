package claims

import "context"

// KV is the store of claims: keys in order, and a revision that every change raises. A transaction is atomic and
// linearizable; one whose outcome is unknown may be applied later, or never.
type KV interface {
	// Commit runs a transaction. Errors wrap ErrUnavailable (certainly not applied) or ErrUnknown.
	Commit(context.Context, Txn) (Result, error)
}

// Txn is one transaction: if all guards hold, each part is done by itself. No two parts touch the same key.
type Txn struct {
	Guards []Guard
	Parts  []Part
}

// Part of a transaction. If its guards hold, puts and deletes are made; if not, or if it has no guards, the ranges are
// read. All guards of a transaction are judged before anything is written; no part reads what another writes.
type Part struct {
	Guards  []Guard
	Puts    []Put
	Deletes []string
	Reads   []Range
}

// Guard is a condition.
type Guard struct {
	// Key, or with End all keys from Key up to End, without End.
	Key, End string
	Is       Condition
	Revision int64
	Value    []byte
}

// Condition of a Guard.
type Condition uint8

// Conditions.
const (
	// Absent: there is no such key.
	Absent Condition = iota + 1
	// Created: the key came into being at Revision, which is not 0. It may have been changed since.
	Created
	// Modified: the key was last changed at Revision; 0 is a key that is not there.
	Modified
	// Holds: the key has Value.
	Holds
	// NotSince: the key was not changed after Revision, or is not there.
	NotSince
)

// Put writes a key.
type Put struct {
	Key   string
	Value []byte
}

// Range of keys from From up to End, without End; an empty End is From alone.
type Range struct {
	From, End string
	// Limit is the most entries that are read; 0 is all.
	Limit int64
}

// Entry is a key that is there.
type Entry struct {
	Key               string
	Value             []byte
	Created, Modified int64
}

// Result of a transaction.
type Result struct {
	// Cluster is the id of the store: one that was restored from a copy has another, if whoever restored it did so by the book.
	Cluster uint64
	// Revision of the store after the transaction: that of its writes, if it has any.
	Revision int64
	// Held: the transaction's own guards held. Otherwise nothing was done, and there are no Parts.
	Held  bool
	Parts []PartResult
}

// PartResult is what became of a part.
type PartResult struct {
	Held bool
	// Reads has the entries of each range, where they were read.
	Reads [][]Entry
}
