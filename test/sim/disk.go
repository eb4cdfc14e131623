package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/spool"
)

// disk is a spooling collector's file system. Every call takes effect at one moment,
// or is the one at which the process, or the machine, ends. What was not synced is
// lost with the power, name by name.
type disk struct {
	w             *world
	p             *process
	live, durable map[string]file
	locked        bool
	crashIn       int // calls until the end; 0 is never
}

type file struct {
	dir  bool
	body []byte
}

func newDisk(w *world, p *process) *disk {
	root := file{dir: true}
	return &disk{w: w, p: p, live: map[string]file{"/": root}, durable: map[string]file{"/": root}}
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

func (d *disk) add(path string, f file, over bool) error {
	if !d.live[filepath.Dir(path)].dir {
		return missing("add", path)
	}
	if _, ok := d.live[path]; ok && !over {
		return &fs.PathError{Op: "add", Path: path, Err: fs.ErrExist}
	}
	d.live[path] = f
	return nil
}

func (d *disk) Mkdir(path string) error {
	return d.call("mkdir", path, func() error { return d.add(path, file{dir: true}, false) })
}

func (d *disk) WriteFile(path string, parts ...[]byte) error {
	return d.call("write", path, func() error { return d.add(path, file{body: slices.Concat(parts...)}, false) })
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
		if !d.live[path].dir {
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

func (d *disk) ReadFile(path string, limit int64) ([]byte, int64, error) {
	if d.p.crashed {
		return nil, 0, errKilled
	}
	f, ok := d.live[path]
	if !ok || f.dir {
		return nil, 0, missing("read", path)
	}
	b := f.body
	if limit > 0 {
		b = b[:min(limit, int64(len(b)))]
	}
	return slices.Clone(b), int64(len(f.body)), nil
}

func (d *disk) ReadDir(path string) ([]spool.DirEntry, error) {
	if d.p.crashed {
		return nil, errKilled
	}
	if !d.live[path].dir {
		return nil, missing("read", path)
	}
	var out []spool.DirEntry
	for name, f := range d.live {
		if name != path && filepath.Dir(name) == path {
			out = append(out, spool.DirEntry{Name: filepath.Base(name), Dir: f.dir})
		}
	}
	slices.SortFunc(out, func(a, b spool.DirEntry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (d *disk) Free(string) (bytes, files int64, err error) { return 1 << 40, 1 << 40, nil }

func (d *disk) Lock(path string) (io.Closer, error) {
	if d.locked {
		return nil, fmt.Errorf("lock %q: taken", path)
	}
	d.locked = true
	return unlocked{d}, nil
}

type unlocked struct{ d *disk }

func (u unlocked) Close() error {
	u.d.locked = false
	return nil
}

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
	left := map[string]file{"/": {dir: true}}
	for _, path := range paths[1:] {
		now, there := d.live[path]
		before, was := d.durable[path]
		same := there == was && now.dir == before.dir && bytes.Equal(now.body, before.body)
		if !same && d.w.ch.n(2) == 0 {
			now, there = before, was
		}
		if there && left[filepath.Dir(path)].dir {
			left[path] = now
		}
	}
	d.live, d.durable = left, map[string]file{}
	for path, f := range left {
		d.durable[path] = f
	}
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

func (d *disk) survives(path string, f file) bool {
	for path != "/" {
		g, ok := d.durable[path]
		if !ok || g.dir != f.dir || !bytes.Equal(g.body, f.body) {
			return false
		}
		path, f = filepath.Dir(path), file{dir: true}
	}
	return true
}

// isSpooled: batches, quarantine, conflicts, corrupt; not tmp.
func isSpooled(path string) bool { return strings.HasSuffix(path, ".lmspool") }
