package crashfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// FS is the disk in use, a vfs.FS. A leading slash of a name is the same as none; "." and
// "/" are the root.
type FS struct {
	// Lie makes the calls for which it is true succeed without doing anything, like a disk that
	// ignores a flush. It may be nil. It is set before use; crashed and killed disks inherit it.
	Lie func(Op) bool

	mu     sync.Mutex
	base   *node
	disk   *disk
	trace  []Op
	locked map[*inode]bool
}

// New is an empty disk.
func New() *FS { return newFS(&node{kids: map[string]*node{}}, nil) }

func newFS(base *node, lie func(Op) bool) *FS {
	return &FS{Lie: lie, base: base, disk: newDisk(base), locked: map[*inode]bool{}}
}

// Len is the number of calls recorded.
func (f *FS) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.trace)
}

func clean(name string) string { return path.Clean("/" + name) }

func failure(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// find needs mu.
func (f *FS) find(name string) *inode {
	n := f.disk.inodes[0]
	for part := range strings.SplitSeq(clean(name), "/") {
		if part == "" {
			continue
		}
		if !n.isDir() || n.live[part] == nil {
			return nil
		}
		n = n.live[part]
	}
	return n
}

// place gives the directory of a name; it needs mu.
func (f *FS) place(op, name string) (dir *inode, base string, err error) {
	p := clean(name)
	dir = f.find(path.Dir(p))
	if dir == nil || !dir.isDir() {
		return nil, "", failure(op, name, fs.ErrNotExist)
	}
	return dir, path.Base(p), nil
}

// do records and plays a call; it needs mu.
func (f *FS) do(o Op) {
	// A call that the disk ignores is not recorded: a walk over the trace must see what the disk did.
	if f.Lie != nil && f.Lie(o) {
		return
	}
	f.disk.apply(o)
	f.trace = append(f.trace, o)
}

// Mkdir makes one directory.
func (f *FS) Mkdir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.find(name) != nil {
		return failure("mkdir", name, fs.ErrExist)
	}
	dir, base, err := f.place("mkdir", name)
	if err != nil {
		return err
	}
	f.do(Op{Kind: Mkdir, Path: name, dir: dir.id, name: base})
	return nil
}

// Create makes a file that must not be there.
func (f *FS) Create(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.find(name) != nil {
		return nil, failure("create", name, fs.ErrExist)
	}
	dir, base, err := f.place("create", name)
	if err != nil {
		return nil, err
	}
	f.do(Op{Kind: Create, Path: name, dir: dir.id, name: base})
	return &File{f, dir.live[base], name}, nil
}

// Open opens a file or a directory that is there.
func (f *FS) Open(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.find(name)
	if n == nil {
		return nil, failure("open", name, fs.ErrNotExist)
	}
	return &File{f, n, name}, nil
}

// Link gives a file a second name, which must be free.
func (f *FS) Link(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.find(from)
	if n == nil {
		return failure("link", from, fs.ErrNotExist)
	}
	if f.find(to) != nil {
		return failure("link", to, fs.ErrExist)
	}
	dir, base, err := f.place("link", to)
	if err != nil {
		return err
	}
	f.do(Op{Kind: Link, Path: from, To: to, ino: n.id, toDir: dir.id, toName: base})
	return nil
}

// Rename moves a file over whatever is there.
func (f *FS) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.find(from)
	if n == nil {
		return failure("rename", from, fs.ErrNotExist)
	}
	dir, base, err := f.place("rename", from)
	if err != nil {
		return err
	}
	toDir, toBase, err := f.place("rename", to)
	if err != nil {
		return err
	}
	// rename(2) leaves both names when they are of one file.
	if n == toDir.live[toBase] {
		return nil
	}
	f.do(Op{Kind: Rename, Path: from, To: to, ino: n.id, dir: dir.id, name: base, toDir: toDir.id, toName: toBase})
	return nil
}

// Remove deletes a file or an empty directory.
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.find(name)
	if n == nil {
		return failure("remove", name, fs.ErrNotExist)
	}
	// As rmdir(2) does it: a directory with names in it stays.
	if len(n.live) > 0 {
		return failure("remove", name, fmt.Errorf("directory is not empty"))
	}
	dir, base, err := f.place("remove", name)
	if err != nil {
		return err
	}
	f.do(Op{Kind: Remove, Path: name, dir: dir.id, name: base})
	return nil
}

// RemoveAll deletes a tree, one call for each name.
func (f *FS) RemoveAll(name string) error {
	list, err := f.List(name)
	if err != nil {
		return nil // nothing is there, or a file
	}
	for _, e := range list {
		p := path.Join(name, e.Name)
		if e.Type.IsDir() {
			err = f.RemoveAll(p)
		} else {
			err = f.Remove(p)
		}
		if err != nil {
			return err
		}
	}
	return f.Remove(name)
}

// List gives the names in a directory, in order.
func (f *FS) List(name string) ([]vfs.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.find(name)
	if n == nil || !n.isDir() {
		return nil, failure("list", name, fs.ErrNotExist)
	}
	list := make([]vfs.Entry, 0, len(n.live))
	for _, k := range slices.Sorted(maps.Keys(n.live)) {
		list = append(list, vfs.Entry{Name: k, Type: n.live[k].mode()})
	}
	return list, nil
}

// Stat describes a file or a directory.
func (f *FS) Stat(name string) (vfs.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.find(name)
	if n == nil {
		return vfs.Info{}, failure("stat", name, fs.ErrNotExist)
	}
	return vfs.Info{Size: int64(len(n.data)), Type: n.mode()}, nil
}

// Free is never short.
func (f *FS) Free(string) (bytes, files int64, err error) { return 1 << 40, 1 << 40, nil }

// SyncDir makes the names in a directory durable.
func (f *FS) SyncDir(name string) error {
	h, err := f.Open(name)
	if err != nil {
		return err
	}
	return h.Sync()
}

// Lock takes a lock that ends with the process, on a file that it makes.
func (f *FS) Lock(name string) (io.Closer, error) {
	h, err := f.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		h, err = f.Create(name)
	}
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := h.(*File).n
	if f.locked[n] {
		return nil, failure("lock", name, vfs.ErrLocked)
	}
	f.locked[n] = true
	return unlock{f, n}, nil
}

type unlock struct {
	f *FS
	n *inode
}

func (u unlock) Close() error {
	u.f.mu.Lock()
	defer u.f.mu.Unlock()
	delete(u.f.locked, u.n)
	return nil
}
