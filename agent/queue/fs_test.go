package queue

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// errCrashed is what every call says after the crash.
var errCrashed = errors.New("crashed")

// inode has what was written and what was synced.
type inode struct {
	data, synced []byte
}

// crashFS is an in-memory file system that loses what was not synced. Calls are
// counted; call number crashAt and all later ones fail. A failing write or sync may
// have happened in part.
type crashFS struct {
	mu      sync.Mutex
	names   map[string]*inode // as the process sees them
	durable map[string]*inode // as they are after a crash
	dirs    map[string]bool
	rng     *rand.Rand
	calls   int
	crashAt int // 0 never
	// fail, when set, can fail one call without a crash.
	fail   func(op, name string) error
	locked map[string]bool
}

func newCrashFS(seed uint64) *crashFS {
	return &crashFS{
		names: map[string]*inode{}, durable: map[string]*inode{}, dirs: map[string]bool{},
		rng: rand.New(rand.NewPCG(seed, 1)), locked: map[string]bool{},
	}
}

// step counts a call; it reports whether this very call is the crash.
func (c *crashFS) step(op, name string) (now bool, err error) {
	c.calls++
	if c.crashAt > 0 && c.calls >= c.crashAt {
		return c.calls == c.crashAt, errCrashed
	}
	if c.fail != nil {
		return false, c.fail(op, name)
	}
	return false, nil
}

// crash returns the disk as a machine finds it after power loss: synced bytes, and of
// unsynced ones a random prefix, sometimes with a hole of zeros; unsynced names by chance.
func (c *crashFS) crash() *crashFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := newCrashFS(c.rng.Uint64())
	n.dirs = maps.Clone(c.dirs)
	survivors := maps.Clone(c.durable)
	for _, name := range slices.Sorted(maps.Keys(c.names)) {
		if _, ok := survivors[name]; !ok && c.rng.IntN(2) == 0 {
			survivors[name] = c.names[name]
		}
	}
	for name := range c.durable {
		if _, ok := c.names[name]; !ok && c.rng.IntN(2) == 0 {
			delete(survivors, name) // an unsynced removal that did happen
		}
	}
	for _, name := range slices.Sorted(maps.Keys(survivors)) {
		b := c.tear(survivors[name])
		n.names[name] = &inode{data: b, synced: slices.Clone(b)}
	}
	n.durable = maps.Clone(n.names)
	return n
}

func (c *crashFS) tear(i *inode) []byte {
	b := slices.Clone(i.synced)
	if len(i.data) > len(b) {
		extra := slices.Clone(i.data[len(b):][:c.rng.IntN(len(i.data)-len(b)+1)])
		if len(extra) > 2 && c.rng.IntN(3) == 0 {
			hole := c.rng.IntN(len(extra))
			clear(extra[hole:min(len(extra), hole+1+c.rng.IntN(64))])
		}
		b = append(b, extra...)
	}
	if len(i.data) < len(b) && c.rng.IntN(2) == 0 {
		b = b[:len(i.data)] // an unsynced truncation that did happen
	}
	return b
}

// kill is the disk as the next process finds it when only the process died.
func (c *crashFS) kill() *crashFS {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := newCrashFS(c.rng.Uint64())
	n.names, n.durable, n.dirs = c.names, c.durable, c.dirs
	return n
}

func (c *crashFS) MkdirAll(dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step("mkdir", dir); err != nil {
		return err
	}
	c.dirs[dir] = true
	return nil
}

func (c *crashFS) ReadDir(dir string) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step("readdir", dir); err != nil {
		return nil, err
	}
	var out []string
	for name := range c.names {
		if filepath.Dir(name) == dir {
			out = append(out, filepath.Base(name))
		}
	}
	slices.Sort(out)
	return out, nil
}

func (c *crashFS) Open(name string) (File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step("open", name); err != nil {
		return nil, err
	}
	i, ok := c.names[name]
	if !ok {
		return nil, fmt.Errorf("open %s: %w", name, fs.ErrNotExist)
	}
	return &crashFile{fs: c, name: name, i: i}, nil
}

func (c *crashFS) Create(name string) (File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step("create", name); err != nil {
		return nil, err
	}
	i, ok := c.names[name]
	if !ok {
		i = &inode{}
		c.names[name] = i
	}
	i.data = nil
	return &crashFile{fs: c, name: name, i: i}, nil
}

func (c *crashFS) Rename(oldName, newName string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.step("rename", newName)
	if err != nil && (!now || c.rng.IntN(2) == 0) {
		return err
	}
	i, ok := c.names[oldName]
	if !ok {
		return fmt.Errorf("rename %s: %w", oldName, fs.ErrNotExist)
	}
	delete(c.names, oldName)
	c.names[newName] = i
	return err
}

func (c *crashFS) Remove(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step("remove", name); err != nil {
		return err
	}
	if _, ok := c.names[name]; !ok {
		return fmt.Errorf("remove %s: %w", name, fs.ErrNotExist)
	}
	delete(c.names, name)
	return nil
}

func (c *crashFS) SyncDir(dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.step("syncdir", dir)
	if err != nil && (!now || c.rng.IntN(2) == 0) {
		return err
	}
	for name := range c.durable {
		if filepath.Dir(name) == dir {
			delete(c.durable, name)
		}
	}
	for name, i := range c.names {
		if filepath.Dir(name) == dir {
			c.durable[name] = i
		}
	}
	return err
}

func (c *crashFS) Lock(name string) (io.Closer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.step("lock", name); err != nil {
		return nil, err
	}
	if c.locked[name] {
		return nil, ErrLocked
	}
	c.locked[name] = true
	return unlock(func() { delete(c.locked, name) }), nil
}

type unlock func()

func (u unlock) Close() error { u(); return nil }

type crashFile struct {
	fs   *crashFS
	name string
	i    *inode
}

func (f *crashFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if off > int64(len(f.i.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.i.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *crashFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	now, err := f.fs.step("write", f.name)
	if err != nil {
		if !now && errors.Is(err, errCrashed) {
			return 0, err
		}
		p = p[:f.fs.rng.IntN(len(p)+1)]
	}
	if grow := off + int64(len(p)) - int64(len(f.i.data)); grow > 0 {
		f.i.data = append(f.i.data, make([]byte, grow)...)
	}
	copy(f.i.data[off:], p)
	return len(p), err
}

func (f *crashFile) Close() error { return nil }

func (f *crashFile) Size() (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return int64(len(f.i.data)), nil
}

func (f *crashFile) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.fs.step("truncate", f.name); err != nil {
		return err
	}
	f.i.data = slices.Clone(f.i.data[:size])
	return nil
}

func (f *crashFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	now, err := f.fs.step("sync", f.name)
	if err != nil && (!now || f.fs.rng.IntN(2) == 0) {
		return err
	}
	f.i.synced = slices.Clone(f.i.data)
	return err
}

func (c *crashFS) list() string {
	return strings.Join(slices.Sorted(maps.Keys(c.names)), "\n")
}

func noSpace() error { return syscall.ENOSPC }
