// Package errorfs is a file system whose calls fail as a test wishes.
package errorfs

import (
	"io"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// Kind of a call.
type Kind string

// Kinds of calls that can fail: all of vfs.FS, and of vfs.File those that write.
const (
	Create   Kind = "create"
	Open     Kind = "open"
	Link     Kind = "link"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	Mkdir    Kind = "mkdir"
	List     Kind = "list"
	Stat     Kind = "stat"
	SyncDir  Kind = "syncdir"
	Free     Kind = "free"
	Lock     Kind = "lock"
	Write    Kind = "write"
	Truncate Kind = "truncate"
	Allocate Kind = "allocate"
	Sync     Kind = "sync"
)

// Op is a call that is about to be made.
type Op struct {
	Kind Kind
	Name string // of a rename and a link, the new name
	Size int    // of a write, bytes
}

// Fault is how a call fails. The zero value is a call that does not.
type Fault struct {
	Err error
	// Made: the call takes effect all the same, and only its answer is lost.
	Made bool
	// Written bytes of a write reach the file before it fails.
	Written int
}

// FS is a file system with faults.
type FS struct {
	vfs.FS
	inject func(Op) Fault
}

// Wrap asks inject before each call. inject must be safe for concurrent use where the calls are.
func Wrap(fsys vfs.FS, inject func(Op) Fault) *FS { return &FS{fsys, inject} }

// call makes a call, or its fault. The errors of faulty calls that are made are lost with their answers.
func (f *FS) call(op Op, make func() error) error {
	fault := f.inject(op)
	if fault.Err == nil {
		return make()
	}
	if fault.Made {
		_ = make()
	}
	return fault.Err
}

func (f *FS) open(op Op, open func() (vfs.File, error)) (vfs.File, error) {
	var file vfs.File
	err := f.call(op, func() (err error) {
		file, err = open()
		return err
	})
	switch {
	case err == nil:
		return &File{file, f, op.Name}, nil
	// The call was made and its answer is lost: nobody else could close the file.
	case file != nil:
		_ = file.Close()
	}
	return nil, err
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	return f.open(Op{Kind: Create, Name: name}, func() (vfs.File, error) { return f.FS.Create(name) })
}

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) {
	return f.open(Op{Kind: Open, Name: name}, func() (vfs.File, error) { return f.FS.Open(name) })
}

// Link implements vfs.FS.
func (f *FS) Link(oldname, newname string) error {
	return f.call(Op{Kind: Link, Name: newname}, func() error { return f.FS.Link(oldname, newname) })
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldname, newname string) error {
	return f.call(Op{Kind: Rename, Name: newname}, func() error { return f.FS.Rename(oldname, newname) })
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.call(Op{Kind: Remove, Name: name}, func() error { return f.FS.Remove(name) })
}

// Mkdir implements vfs.FS.
func (f *FS) Mkdir(name string) error {
	return f.call(Op{Kind: Mkdir, Name: name}, func() error { return f.FS.Mkdir(name) })
}

// List implements vfs.FS.
func (f *FS) List(dir string) (entries []vfs.Entry, err error) {
	err = f.call(Op{Kind: List, Name: dir}, func() (err error) {
		entries, err = f.FS.List(dir)
		return err
	})
	return entries, err
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (info vfs.Info, err error) {
	err = f.call(Op{Kind: Stat, Name: name}, func() (err error) {
		info, err = f.FS.Stat(name)
		return err
	})
	return info, err
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	return f.call(Op{Kind: SyncDir, Name: dir}, func() error { return f.FS.SyncDir(dir) })
}

// Free implements vfs.FS.
func (f *FS) Free(dir string) (bytes, files int64, err error) {
	err = f.call(Op{Kind: Free, Name: dir}, func() (err error) {
		bytes, files, err = f.FS.Free(dir)
		return err
	})
	return bytes, files, err
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (lock io.Closer, err error) {
	err = f.call(Op{Kind: Lock, Name: name}, func() (err error) {
		lock, err = f.FS.Lock(name)
		return err
	})
	return lock, err
}

// File is an open file with faults.
type File struct {
	vfs.File
	fs   *FS
	name string
}

// WriteAt implements vfs.File.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	fault := f.fs.inject(Op{Kind: Write, Name: f.name, Size: len(p)})
	switch {
	case fault.Err == nil:
		return f.File.WriteAt(p, off)
	case fault.Made:
		fault.Written = len(p)
	}
	n, _ := f.File.WriteAt(p[:min(fault.Written, len(p))], off)
	return n, fault.Err
}

// Truncate implements vfs.File.
func (f *File) Truncate(size int64) error {
	return f.fs.call(Op{Kind: Truncate, Name: f.name}, func() error { return f.File.Truncate(size) })
}

// Allocate implements vfs.File.
func (f *File) Allocate(off, n int64) error {
	return f.fs.call(Op{Kind: Allocate, Name: f.name}, func() error { return f.File.Allocate(off, n) })
}

// Sync implements vfs.File.
func (f *File) Sync() error {
	return f.fs.call(Op{Kind: Sync, Name: f.name}, f.File.Sync)
}
