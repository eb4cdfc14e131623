// Package engine keeps objects in an append-only, checksummed segment log with group
// commit, large bodies in files of their own, and an ordered index that can always be
// rebuilt from the log.
//
// One goroutine, the committer, decides every write: it collects what is waiting, checks each
// condition against the index and the operations before it in the batch, writes the batch with
// one write and one fsync, updates the index, and only then answers the callers. So the check of
// a condition and its write are one step, and the index holds only what is durable. The byte
// format is docs/format/segment-log.md.
package engine
