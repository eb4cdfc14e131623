package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// disk is a spooling collector's file system. Every call takes effect at one moment,
// or is the one at which the process, or the machine, ends. What was not synced is
// lost with the power, name by name and file by file.
type disk struct {
	w             *world
	p             *process
	live, durable map[string]*file
	locked        bool
	crashIn       int // calls until the end; 0 is never
}

type file struct {
	dir          bool
	body, synced []byte
}

func newDisk(w *world, p *process) *disk {
	root := &file{dir: true}
	return &disk{w: w, p: p, live: map[string]*file{"/": root}, durable: map[string]*file{"/": root}}
}

func (d *disk) call(what, path string, f func() error) error {
	if d.p.crashed {
		return errKilled
	}
	if d.crashIn > 0 {
		if d.crashIn--; d.crashIn == 0 {
			how := "before"
			if d.w.ch.n(2) == 1 {
				how, _ = "after", f()
			}
			d.p.crashed = true
			d.w.note(d.p.name, "ends "+how, what, path+": ", errKilled)
			return errKilled
		}
	}
	return f()
}

func missing(op, path string) error { return &fs.PathError{Op: op, Path: path, Err: fs.ErrNotExist} }

func (d *disk) isDir(path string) bool {
	f, ok := d.live[path]
	return ok && f.dir
}

func (d *disk) add(path string, f *file, over bool) error {
	if !d.isDir(filepath.Dir(path)) {
		return missing("add", path)
	}
	if _, ok := d.live[path]; ok && !over {
		return &fs.PathError{Op: "add", Path: path, Err: fs.ErrExist}
	}
	d.live[path] = f
	return nil
}

func (d *disk) Mkdir(path string) error {
	return d.call("mkdir", path, func() error { return d.add(path, &file{dir: true}, false) })
}

func (d *disk) Create(path string) (vfs.File, error) {
	f := &file{}
	if err := d.call("create", path, func() error { return d.add(path, f, false) }); err != nil {
		return nil, err
	}
	return &handle{d, path, f}, nil
}

func (d *disk) Open(path string) (vfs.File, error) {
	if d.p.crashed {
		return nil, errKilled
	}
	f, ok := d.live[path]
	if !ok || f.dir {
		return nil, missing("open", path)
	}
	return &handle{d, path, f}, nil
}

func (d *disk) Link(from, to string) error {
	return d.call("link", to, func() error {
		f, ok := d.live[from]
		if !ok {
			return missing("link", from)
		}
		return d.add(to, f, false)
	})
}

func (d *disk) Rename(from, to string) error {
	return d.call("rename", to, func() error {
		f, ok := d.live[from]
		if !ok {
			return missing("rename", from)
		}
		err := d.add(to, f, true)
		if err == nil {
			delete(d.live, from)
		}
		return err
	})
}

func (d *disk) Remove(path string) error {
	return d.call("remove", path, func() error {
		f, ok := d.live[path]
		if !ok {
			return missing("remove", path)
		}
		delete(d.live, path)
		d.w.checkLeft(d, path, f)
		return nil
	})
}

func (d *disk) SyncDir(path string) error {
	return d.call("sync", path, func() error {
		if !d.isDir(path) {
			return missing("sync", path)
		}
		for name := range d.durable {
			if _, ok := d.live[name]; !ok && filepath.Dir(name) == path {
				delete(d.durable, name)
			}
		}
		for name, f := range d.live {
			if filepath.Dir(name) == path {
				d.durable[name] = f
			}
		}
		return nil
	})
}

func (d *disk) List(path string) ([]vfs.Entry, error) {
	if d.p.crashed {
		return nil, errKilled
	}
	if !d.isDir(path) {
		return nil, missing("list", path)
	}
	var out []vfs.Entry
	for name, f := range d.live {
		if name != path && filepath.Dir(name) == path {
			out = append(out, vfs.Entry{Name: filepath.Base(name), Type: f.mode()})
		}
	}
	slices.SortFunc(out, func(a, b vfs.Entry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (d *disk) Stat(path string) (vfs.Info, error) {
	if d.p.crashed {
		return vfs.Info{}, errKilled
	}
	f, ok := d.live[path]
	if !ok {
		return vfs.Info{}, missing("stat", path)
	}
	return vfs.Info{Size: int64(len(f.body)), Type: f.mode()}, nil
}

func (f *file) mode() fs.FileMode {
	if f.dir {
		return fs.ModeDir
	}
	return 0
}

func (d *disk) Free(string) (bytes, files int64, err error) { return 1 << 40, 1 << 40, nil }

func (d *disk) Lock(path string) (io.Closer, error) {
	if d.locked {
		return nil, fmt.Errorf("lock %q: %w", path, vfs.ErrLocked)
	}
	d.locked = true
	return unlocked{d}, nil
}

type unlocked struct{ d *disk }

func (u unlocked) Close() error {
	u.d.locked = false
	return nil
}

// handle is an open file.
type handle struct {
	d    *disk
	path string
	f    *file
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	if h.d.p.crashed {
		return 0, errKilled
	}
	n := copy(p, h.f.body[min(off, int64(len(h.f.body))):])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	err := h.d.call("write", h.path, func() error {
		body := make([]byte, max(int64(len(h.f.body)), off+int64(len(p))))
		copy(body, h.f.body)
		copy(body[off:], p)
		h.f.body = body
		return nil
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (h *handle) Truncate(size int64) error {
	return h.d.call("truncate", h.path, func() error {
		body := make([]byte, size)
		copy(body, h.f.body)
		h.f.body = body
		return nil
	})
}

func (h *handle) Allocate(off, n int64) error { return vfs.WriteZeros(h, off, n) }

func (h *handle) Sync() error {
	return h.d.call("sync", h.path, func() error {
		h.f.synced = h.f.body
		return nil
	})
}

func (h *handle) Size() (int64, error) { return int64(len(h.f.body)), nil }
func (h *handle) Close() error         { return nil }

// powerLoss keeps what is durable, and of the rest what is drawn.
func (d *disk) powerLoss() {
	paths := make([]string, 0, len(d.live))
	for path := range d.live {
		paths = append(paths, path)
	}
	for path := range d.durable {
		if _, ok := d.live[path]; !ok {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths) // a directory before what is in it
	root := &file{dir: true}
	left := map[string]*file{"/": root}
	restored := map[*file]*file{}
	for _, path := range paths[1:] {
		f := d.live[path]
		if before := d.durable[path]; f != before && d.w.ch.n(2) == 0 {
			f = before
		}
		if parent := left[filepath.Dir(path)]; f == nil || parent == nil || !parent.dir {
			continue
		}
		if restored[f] == nil {
			body := d.bytesLeft(f)
			restored[f] = &file{f.dir, body, body}
		}
		left[path] = restored[f]
	}
	d.live, d.durable = left, maps.Clone(left)
}

// bytesLeft of a file: what was synced, what was written, or a part of it.
func (d *disk) bytesLeft(f *file) []byte {
	if bytes.Equal(f.body, f.synced) {
		return f.synced
	}
	switch d.w.ch.n(3) {
	case 0:
		return f.synced
	case 1:
		return f.body[:len(f.body)/2]
	}
	return f.body
}

// has reports whether a spool file holds the frame of sum: one that survives a loss of power, if it must.
func (d *disk) has(frame []byte, sum identity.Digest, safe bool) bool {
	for path, f := range d.live {
		if f.dir || !isSpooled(path) || !bytes.HasSuffix(f.body, frame) || identity.Sum(f.body[len(f.body)-len(frame):]) != sum {
			continue
		}
		if !safe || d.survives(path, f) {
			return true
		}
	}
	return false
}

// survives: the bytes of the file are durable, and so is every name on the path to it.
func (d *disk) survives(path string, f *file) bool {
	if d.durable[path] != f || !bytes.Equal(f.body, f.synced) {
		return false
	}
	for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
		if d.durable[dir] == nil || d.durable[dir] != d.live[dir] {
			return false
		}
	}
	return true
}

// isSpooled: batches, quarantine, conflicts, corrupt; not tmp.
func isSpooled(path string) bool { return strings.HasSuffix(path, ".lmspool") }
