package vfstest

import (
	"io"
	"path"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// Sub is the file system below a directory of another one. Names cannot lead out of it.
func Sub(fsys vfs.FS, dir string) vfs.FS { return sub{fsys, dir} }

type sub struct {
	fs  vfs.FS
	dir string
}

func (s sub) path(name string) string { return path.Join(s.dir, path.Clean("/"+name)) }

func (s sub) Create(name string) (vfs.File, error) { return s.fs.Create(s.path(name)) }

func (s sub) Open(name string) (vfs.File, error) { return s.fs.Open(s.path(name)) }

func (s sub) Link(oldname, newname string) error { return s.fs.Link(s.path(oldname), s.path(newname)) }

func (s sub) Rename(oldname, newname string) error {
	return s.fs.Rename(s.path(oldname), s.path(newname))
}

func (s sub) Remove(name string) error { return s.fs.Remove(s.path(name)) }

func (s sub) Mkdir(name string) error { return s.fs.Mkdir(s.path(name)) }

func (s sub) List(dir string) ([]vfs.Entry, error) { return s.fs.List(s.path(dir)) }

func (s sub) Stat(name string) (vfs.Info, error) { return s.fs.Stat(s.path(name)) }

func (s sub) SyncDir(dir string) error { return s.fs.SyncDir(s.path(dir)) }

func (s sub) Free(dir string) (bytes, files int64, err error) { return s.fs.Free(s.path(dir)) }

func (s sub) Lock(name string) (io.Closer, error) { return s.fs.Lock(s.path(name)) }
