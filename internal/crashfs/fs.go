package crashfs

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
)

// FS is the disk in use. Paths are slash-separated; a leading slash is the same as
// none, "." and "/" are the root. Errors wrap fs.ErrExist and fs.ErrNotExist.
type FS struct {
	// Lie makes calls of choice succeed without doing anything, as a disk does that
	// ignores a flush; nil is honest. Set it before use; crashed and killed disks inherit it.
	Lie func(Op) bool

	mu     sync.Mutex
	base   *node
	disk   *disk
	trace  []Op
	locked map[string]bool
}

// New is an empty disk.
func New() *FS { return newFS(&node{kids: map[string]*node{}}, nil) }

func newFS(base *node, lie func(Op) bool) *FS {
	return &FS{Lie: lie, base: base, disk: newDisk(base), locked: map[string]bool{}}
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

// MkdirAll makes a directory and its parents.
func (f *FS) MkdirAll(name string) error {
	p := clean(name)
	if p == "/" {
		return nil
	}
	if err := f.MkdirAll(path.Dir(p)); err != nil {
		return err
	}
	f.mu.Lock()
	there := f.find(p)
	f.mu.Unlock()
	if there != nil && there.isDir() {
		return nil
	}
	return f.Mkdir(p)
}

// Create makes a file that must not be there.
func (f *FS) Create(name string) (*File, error) {
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

// CreateOrTruncate makes a file, or empties the one that is there.
func (f *FS) CreateOrTruncate(name string) (*File, error) {
	h, err := f.Open(name)
	if err != nil {
		return f.Create(name)
	}
	return h, h.Truncate(0)
}

// Open opens a file or a directory that is there.
func (f *FS) Open(name string) (*File, error) {
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
	list, err := f.ReadDir(name)
	if err != nil {
		return nil // nothing is there, or a file
	}
	for _, e := range list {
		p := path.Join(name, e.Name)
		if e.Dir {
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

// Entry is a name in a directory.
type Entry struct {
	Name string
	Dir  bool
}

// ReadDir lists a directory in name order.
func (f *FS) ReadDir(name string) ([]Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.find(name)
	if n == nil || !n.isDir() {
		return nil, failure("readdir", name, fs.ErrNotExist)
	}
	list := make([]Entry, 0, len(n.live))
	for _, k := range slices.Sorted(maps.Keys(n.live)) {
		list = append(list, Entry{k, n.live[k].isDir()})
	}
	return list, nil
}

// SyncDir makes the names in a directory durable.
func (f *FS) SyncDir(name string) error {
	h, err := f.Open(name)
	if err != nil {
		return err
	}
	return h.Sync()
}

// Lock takes a lock that ends with the process. It makes no file.
func (f *FS) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locked[name] {
		return nil, failure("lock", name, fs.ErrExist)
	}
	f.locked[name] = true
	return unlock{f, name}, nil
}

type unlock struct {
	f    *FS
	name string
}

func (u unlock) Close() error {
	u.f.mu.Lock()
	defer u.f.mu.Unlock()
	delete(u.f.locked, u.name)
	return nil
}
