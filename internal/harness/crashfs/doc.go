// Package crashfs is a file system in memory with a power switch. It records every call
// that changes the disk, and makes of any prefix of the calls the disks that a power
// loss may leave: what was not synced is dropped, kept, torn or reordered, by seed. The model is in docs/protocol/crash.md.
//
// A test runs its workload once on an FS, notes FS.Len when it issues and when it is told
// that an operation is done, and then walks the calls: Walker.Crash gives a disk after a
// power loss there, Walker.Kill one after the death of the process alone. Both are FS
// again, so that recovery can be cut off too.
package crashfs
