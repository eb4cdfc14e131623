package body_test

import (
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body/bodytest"
)

// TestFiles: files are a body.Store, on the real file system and on the one of the power-loss tests.
func TestFiles(t *testing.T) {
	t.Run("dir", func(t *testing.T) {
		bodytest.Run(t, func(t *testing.T) func() body.Store {
			dir := vfs.Dir(t.TempDir())
			return func() body.Store { return body.NewFiles(dir, nil) }
		})
	})
	t.Run("crashfs", func(t *testing.T) {
		bodytest.Run(t, func(*testing.T) func() body.Store {
			f := crashfs.New()
			return func() body.Store { return body.NewFiles(f, nil) }
		})
	})
}

// disk shows a crashable file system to the suite.
type disk struct{ f *crashfs.FS }

func (d disk) FS() vfs.FS { return d.f }
func (d disk) Calls() int { return d.f.Len() }

func (d disk) Cuts(fn func(calls int, how string, left vfs.FS)) {
	w := d.f.Walk()
	for ok := true; ok; ok = w.Step() {
		for i := range uint64(6) {
			model := crashfs.Model(min(i, 3))
			fn(w.At(), model.String(), w.Crash(model, i))
		}
		fn(w.At(), "killed", w.Kill())
	}
}

func files(f vfs.FS) body.Store { return body.NewFiles(f, nil) }

func TestFilesPowerLoss(t *testing.T) {
	f := crashfs.New()
	disks, err := bodytest.PowerLoss(disk{f}, files)
	t.Logf("%d calls, %d disks", f.Len(), disks)
	if err != nil {
		t.Error(err)
	}
}

// TestFilesPowerLossMutants: the suite must fail when a step of the write order is left out.
func TestFilesPowerLossMutants(t *testing.T) {
	for name, lie := range map[string]func(crashfs.Op) bool{
		"no fsync of body files": func(o crashfs.Op) bool { return o.Kind == crashfs.Sync },
		"no fsync of a folder":   func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && strings.HasPrefix(o.Path, body.Dir+"/") },
		"no fsync of the directory of folders": func(o crashfs.Op) bool {
			return o.Kind == crashfs.SyncDir && o.Path == body.Dir
		},
		"no fsync of the store's directory": func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && o.Path == "." },
	} {
		t.Run(name, func(t *testing.T) {
			f := crashfs.New()
			f.Lie = lie
			disks, err := bodytest.PowerLoss(disk{f}, files)
			if err == nil {
				t.Errorf("not caught on %d disks", disks)
			}
			t.Log(err)
		})
	}
}
