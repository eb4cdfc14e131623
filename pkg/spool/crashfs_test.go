package spool_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"lightmetrics.dev/lightmetrics/pkg/spool"
)

// crashFS is a file system in memory with a power switch: what was not synced may
// be lost when it goes off, entry by entry, by seed.
type crashFS struct {
	mu     sync.Mutex
	root   *dir
	ops    int
	failAt int // the operation with this number, and all that follow, fail; -1 never
	done   bool
	only   bool // only the one operation fails
	locked bool
}

type dir struct{ live, durable map[string]any } // *dir or []byte

func newDir() *dir { return &dir{map[string]any{}, map[string]any{}} }

func newCrashFS() *crashFS { return &crashFS{root: newDir(), failAt: -1} }

var errPower = errors.New("power is off")

// op counts an operation. With done, the failing one takes effect and its answer is lost.
func (c *crashFS) op(f func() error) error {
	n := c.ops
	c.ops++
	if c.failAt >= 0 && (n == c.failAt || n > c.failAt && !c.only) {
		if n == c.failAt && c.done {
			f()
		}
		return errPower
	}
	return f()
}

func (c *crashFS) find(path string) (any, error) {
	var at any = c.root
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if name == "" {
			continue
		}
		d, ok := at.(*dir)
		if !ok {
			return nil, &fs.PathError{Op: "find", Path: path, Err: fs.ErrNotExist}
		}
		if at, ok = d.live[name]; !ok {
			return nil, &fs.PathError{Op: "find", Path: path, Err: fs.ErrNotExist}
		}
	}
	return at, nil
}

func (c *crashFS) parent(path string) (*dir, string, error) {
	n, err := c.find(filepath.Dir(path))
	if err != nil {
		return nil, "", err
	}
	return n.(*dir), filepath.Base(path), nil
}

func (c *crashFS) place(path string, n any, over bool) error {
	d, name, err := c.parent(path)
	if err != nil {
		return err
	}
	if _, ok := d.live[name]; ok && !over {
		return &fs.PathError{Op: "place", Path: path, Err: fs.ErrExist}
	}
	d.live[name] = n
	return nil
}

func (c *crashFS) Mkdir(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.op(func() error { return c.place(path, newDir(), false) })
}

func (c *crashFS) WriteFile(path string, parts ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.op(func() error { return c.place(path, slices.Concat(parts...), false) })
}

func (c *crashFS) Link(from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.op(func() error {
		n, err := c.find(from)
		if err != nil {
			return err
		}
		return c.place(to, n, false)
	})
}

func (c *crashFS) Rename(from, to string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.op(func() error {
		n, err := c.find(from)
		if err != nil {
			return err
		}
		if err := c.place(to, n, true); err != nil {
			return err
		}
		d, name, err := c.parent(from)
		delete(d.live, name)
		return err
	})
}

func (c *crashFS) Remove(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.op(func() error {
		d, name, err := c.parent(path)
		if err != nil {
			return err
		}
		if _, ok := d.live[name]; !ok {
			return &fs.PathError{Op: "remove", Path: path, Err: fs.ErrNotExist}
		}
		delete(d.live, name)
		return nil
	})
}

func (c *crashFS) SyncDir(path string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.op(func() error {
		n, err := c.find(path)
		if err != nil {
			return err
		}
		d := n.(*dir)
		clear(d.durable)
		for name, v := range d.live {
			d.durable[name] = v
		}
		return nil
	})
}

func (c *crashFS) ReadFile(path string, limit int64) ([]byte, int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failAt >= 0 && c.ops > c.failAt && !c.only {
		return nil, 0, errPower
	}
	n, err := c.find(path)
	if err != nil {
		return nil, 0, err
	}
	b := n.([]byte)
	size := int64(len(b))
	if limit > 0 {
		b = b[:min(limit, size)]
	}
	return slices.Clone(b), size, nil
}

func (c *crashFS) ReadDir(path string) ([]spool.DirEntry, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failAt >= 0 && c.ops > c.failAt && !c.only {
		return nil, errPower
	}
	n, err := c.find(path)
	if err != nil {
		return nil, err
	}
	var out []spool.DirEntry
	for name, v := range n.(*dir).live {
		_, isDir := v.(*dir)
		out = append(out, spool.DirEntry{Name: name, Dir: isDir})
	}
	slices.SortFunc(out, func(a, b spool.DirEntry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (c *crashFS) Lock(path string) (io.Closer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.locked {
		return nil, fmt.Errorf("lock %q: taken", path)
	}
	c.locked = true
	return unlock{c}, nil
}

type unlock struct{ c *crashFS }

func (u unlock) Close() error {
	u.c.mu.Lock()
	defer u.c.mu.Unlock()
	u.c.locked = false
	return nil
}

// powerLoss keeps what is durable and, of the rest, what the seed likes.
func (c *crashFS) powerLoss(rng *rand.Rand) {
	c.failAt, c.locked = -1, false
	var drop func(d *dir)
	drop = func(d *dir) {
		names := map[string]bool{}
		for n := range d.live {
			names[n] = true
		}
		for n := range d.durable {
			names[n] = true
		}
		for _, n := range slices.Sorted(func(yield func(string) bool) {
			for n := range names {
				if !yield(n) {
					return
				}
			}
		}) {
			now, there := d.live[n]
			before, was := d.durable[n]
			if same := there == was && (!there || sameNode(now, before)); !same && rng.IntN(2) == 0 {
				delete(d.live, n)
				if was {
					d.live[n] = before
				}
			}
		}
		clear(d.durable)
		for n, v := range d.live {
			d.durable[n] = v
			if sub, ok := v.(*dir); ok {
				drop(sub)
			}
		}
	}
	drop(c.root)
}

func sameNode(a, b any) bool {
	x, ok := a.([]byte)
	y, ok2 := b.([]byte)
	if ok && ok2 {
		return string(x) == string(y)
	}
	return !ok && !ok2 && a == b
}

func (c *crashFS) Free(string) (bytes, files int64, err error) { return 1 << 40, 1 << 40, nil }
