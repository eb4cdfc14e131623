// Package crashfs is a file system in memory that can lose power. It records every call that changes
// the disk. From any prefix of the calls it makes the disks that a power loss may leave: what was not
// synced is dropped, kept, torn or reordered, by seed. The model is in docs/protocol/crash.md.
//
// A test runs its workload once on an FS and notes FS.Len when it issues an operation and when the
// operation returns. Then it walks the calls: Walker.Crash gives a disk after a power loss there,
// Walker.Kill one after a kill of the process alone. Both are an FS again, so that recovery can be
// interrupted too.
package crashfs
