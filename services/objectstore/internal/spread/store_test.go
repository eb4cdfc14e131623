package spread

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body/bodytest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

var drives = []string{"a", "b", "c"}

// slotsOf are local places in directories of a file system.
func slotsOf(fsys vfs.FS, names ...string) (out []Slot) {
	for _, n := range names {
		out = append(out, Slot{Name: n, Local: true, Open: func(context.Context) (place.Place, error) {
			if _, err := fsys.Stat(n); err != nil {
				return nil, fmt.Errorf("%w: %w", place.ErrOut, err)
			}
			return place.OpenDirectory(n, vfstest.Sub(fsys, n), nil)
		}})
	}
	return out
}

// makeDrives makes the directories of the drives, as an operator does.
func makeDrives(fsys vfs.FS) error {
	var errs []error
	for _, d := range append([]string{"main"}, drives...) {
		errs = append(errs, vfs.EnsureDir(fsys, d))
	}
	return errors.Join(append(errs, fsys.SyncDir("."))...)
}

// process opens stores on a disk, one after the other: the one before has ended.
type process struct{ last *Store }

func (p *process) open(fsys vfs.FS, edit func(*Options)) body.Store {
	if p.last != nil {
		_ = p.last.Close()
	}
	p.last = nil
	if err := makeDrives(fsys); err != nil {
		return failedStore{err: err}
	}
	opt := Options{FS: vfstest.Sub(fsys, "main"), Slots: slotsOf(fsys, drives...), AckCopies: 2}
	if edit != nil {
		edit(&opt)
	}
	s, err := Open(context.Background(), opt)
	if err != nil {
		return failedStore{err: err}
	}
	p.last = s
	return s
}

// failedStore could not be opened.
type failedStore struct {
	body.Store
	err error
}

func (f failedStore) Recover() error { return f.err }

// TestStore: a store over places is a body.Store, on the real file system and on the one of the
// power-loss tests.
func TestStore(t *testing.T) {
	t.Run("dir", func(t *testing.T) {
		bodytest.Run(t, func(t *testing.T) func() body.Store {
			dir, p := vfs.Dir(t.TempDir()), &process{}
			return func() body.Store { return p.open(dir, nil) }
		})
	})
	t.Run("crashfs", func(t *testing.T) {
		bodytest.Run(t, func(*testing.T) func() body.Store {
			f, p := crashfs.New(), &process{}
			return func() body.Store { return p.open(f, nil) }
		})
	})
	t.Run("before places", func(t *testing.T) {
		bodytest.Run(t, func(*testing.T) func() body.Store {
			f, p := crashfs.New(), &process{}
			return func() body.Store {
				return p.open(f, func(o *Options) { o.Old = body.NewFiles(vfstest.Sub(f, "main"), nil) })
			}
		})
	})
}

// disk shows a crashable file system to the suite, without one of the drives after the crash.
type disk struct {
	f    *crashfs.FS
	lost string
}

func (d disk) FS() vfs.FS { return d.f }
func (d disk) Calls() int { return d.f.Len() }

func (d disk) Cuts(fn func(calls int, how string, left vfs.FS)) {
	w := d.f.Walk()
	for ok := true; ok; ok = w.Step() {
		for i := range uint64(4) {
			model := crashfs.Model(i)
			left := w.Crash(model, i)
			erase(left, d.lost)
			fn(w.At(), model.String(), left)
		}
		left := w.Kill()
		erase(left, d.lost)
		fn(w.At(), "killed", left)
	}
}

// erase makes a drive blank.
func erase(fsys vfs.FS, dir string) {
	if dir == "" {
		return
	}
	list, err := fsys.List(dir)
	if err != nil {
		return
	}
	for _, e := range list {
		name := dir + "/" + e.Name
		if e.Type.IsDir() {
			erase(fsys, name)
		}
		_ = fsys.Remove(name)
	}
}

// TestPowerLoss: power goes behind every call, and one of the drives with it.
func TestPowerLoss(t *testing.T) {
	for _, lost := range append([]string{""}, drives...) {
		t.Run("lost "+lost, func(t *testing.T) {
			f := crashfs.New()
			p := &process{}
			disks, err := bodytest.PowerLoss(disk{f, lost}, func(fsys vfs.FS) body.Store { return p.open(fsys, nil) })
			t.Logf("%d calls, %d disks", f.Len(), disks)
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPowerLossMutants: the suite must fail when a step of the write order is left out on all drives,
// and when copies are fewer than promised.
func TestPowerLossMutants(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(crashfs.Op) bool
		ack  int
		lost string
	}{
		"no fsync of files":   {lie: func(o crashfs.Op) bool { return o.Kind == crashfs.Sync && strings.Contains(o.Path, "/tmp/") }},
		"no fsync of folders": {lie: func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && strings.Contains(o.Path, "/files/") }},
		"no fsync of the directory of folders": {lie: func(o crashfs.Op) bool {
			return o.Kind == crashfs.SyncDir && strings.HasSuffix(o.Path, "/files")
		}},
		"one copy": {ack: 1, lost: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			f := crashfs.New()
			f.Lie = c.lie
			p := &process{}
			_, err := bodytest.PowerLoss(disk{f, c.lost}, func(fsys vfs.FS) body.Store {
				return p.open(fsys, func(o *Options) { o.AckCopies = max(c.ack, 2-c.ack) })
			})
			if err == nil {
				t.Error("not caught")
			}
			t.Log(err)
		})
	}
}
