// Package vfs is the file system as the stores on local disks use it: the agent's queue,
// the collector's spool, the embedded object store. Dir is the real one, internal/harness/crashfs
// one that loses power, errorfs one whose calls fail.
//
// Bytes are durable after File.Sync, and names after SyncDir of their directory; a power
// loss may take back anything else. docs/protocol/crash.md says in which ways.
package vfs

import (
	"errors"
	"io"
	"io/fs"
)

// FS is a file system. Names are slash-separated paths. Errors wrap fs.ErrExist,
// fs.ErrNotExist and what the operating system says, so that errors.Is finds syscall.ENOSPC.
type FS interface {
	// Create makes a new file for reading and writing; fs.ErrExist when the name is taken.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Link gives a file a second name; fs.ErrExist when that is taken.
	Link(oldname, newname string) error
	// Rename moves a file in one step over whatever has the new name.
	Rename(oldname, newname string) error
	// Remove deletes a file or an empty directory.
	Remove(name string) error
	// Mkdir makes one directory; fs.ErrExist when the name is taken.
	Mkdir(name string) error
	// List gives the entries of a directory in the order of their names.
	List(dir string) ([]Entry, error)
	// Stat describes a file or a directory.
	Stat(name string) (Info, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
	// Free is the room that is left where dir lies: bytes, and files.
	Free(dir string) (bytes, files int64, err error)
	// Lock makes a file and takes an exclusive lock on it, which ends with the closer or
	// the process. ErrLocked when another one holds it.
	Lock(name string) (io.Closer, error)
}

// File is an open file. ReadAt and WriteAt may be called at the same time.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size gives the length in bytes.
	Size() (int64, error)
	// Truncate sets the length.
	Truncate(size int64) error
	// Allocate takes room on the disk for n zero bytes from off on, which is the end of the file.
	Allocate(off, n int64) error
	// Sync makes bytes and length durable.
	Sync() error
}

// Entry is a name in a directory.
type Entry struct {
	Name string
	Type fs.FileMode // the bits of fs.ModeType
}

// Info describes a file or a directory.
type Info struct {
	Size int64
	Type fs.FileMode // the bits of fs.ModeType
}

// ErrLocked: the lock is held, by another process or by this one.
var ErrLocked = errors.New("in use by another process")
