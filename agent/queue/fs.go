package queue

import "io"

// FS is what the queue needs of a file system. Nothing is durable before
// File.Sync (bytes) and SyncDir (names); the crash tests drop exactly what was not synced.
type FS interface {
	// MkdirAll makes a directory and its parents durable.
	MkdirAll(dir string) error
	// ReadDir lists the names of the files in dir, sorted.
	ReadDir(dir string) ([]string, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Create makes an empty file, or empties an existing one.
	Create(name string) (File, error)
	// Rename replaces newName atomically.
	Rename(oldName, newName string) error
	Remove(name string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
	// Lock takes an exclusive lock that ends with the process; ErrLocked when it is held.
	Lock(name string) (io.Closer, error)
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Truncate(size int64) error
	Sync() error
}
