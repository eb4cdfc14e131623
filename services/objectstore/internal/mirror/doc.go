// Package mirror is a vfs.FS over the directories of several drives: every write and fsync goes to all of them, and any
// one is enough to read.
//
// A drive whose write or fsync fails is put out: it gets nothing more, and the call is answered when the other drives
// know durably that they go on without it. Membership decides which drives a start may open from.
package mirror
