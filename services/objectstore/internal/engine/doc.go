// Package engine keeps objects in an append-only, checksummed segment log with group
// commit, large bodies in files of their own, and an ordered index that can always be
// rebuilt from the log.
//
// One committer decides every write: it gathers what is waiting, checks each
// precondition against the index and the operations before it in the batch, writes the
// batch with one write and one fsync, updates the index, and only then lets the callers
// go on. So a precondition check and its write are one step, and the index holds only
// what is durable. The byte format is in docs/format/segment-log.md.
package engine
