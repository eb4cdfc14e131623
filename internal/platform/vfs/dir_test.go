package vfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
)

// TestFileSystems: what holds of the real file system holds of those that tests put in its place.
func TestFileSystems(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) vfs.FS{
		"dir":     func(t *testing.T) vfs.FS { return vfs.Dir(t.TempDir()) },
		"crashfs": func(*testing.T) vfs.FS { return crashfs.New() },
		"sub": func(t *testing.T) vfs.FS {
			f := crashfs.New()
			if err := f.Mkdir("d"); err != nil {
				t.Fatal(err)
			}
			return vfstest.Sub(f, "d")
		},
		"errorfs": func(*testing.T) vfs.FS {
			return errorfs.Wrap(crashfs.New(), func(errorfs.Op) errorfs.Fault { return errorfs.Fault{} })
		},
	} {
		t.Run(name, func(t *testing.T) { vfstest.Run(t, open) })
	}
}

// TestMkdirAll makes what is missing for its user alone, and takes what is there.
func TestMkdirAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b", "c")
	for range 2 {
		if err := vfs.MkdirAll(vfs.OS, dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if st, err := os.Stat(d); err != nil || !st.IsDir() || st.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", st, err)
		}
	}
	if err := vfs.WriteFile(vfs.OS, filepath.Join(dir, "f"), []byte("x")); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(dir, "f")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

// afterPowerLoss is what is durable on a disk.
func afterPowerLoss(f *crashfs.FS) *crashfs.FS {
	w := f.Walk()
	for w.Step() {
	}
	return w.Crash(crashfs.Dropped, 1)
}

// TestMkdirAllIsDurable: a directory and its parents survive a loss of power, and so does
// one that a killed process made and did not sync.
func TestMkdirAllIsDurable(t *testing.T) {
	f := crashfs.New()
	if err := f.Mkdir("/a"); err != nil {
		t.Fatal(err)
	}
	if _, err := afterPowerLoss(f).Stat("/a"); err == nil {
		t.Fatal("a name that nobody synced survives")
	}
	if err := errors.Join(vfs.MkdirAll(f, "/a"), vfs.MkdirAll(f, "/x/y/z")); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"/a", "/x/y/z"} {
		if st, err := afterPowerLoss(f).Stat(d); err != nil || !st.Type.IsDir() {
			t.Errorf("%s: %v, %v", d, st, err)
		}
	}
}

// TestReplaceFileIsOneStep: behind every call a loss of power leaves the old bytes or the
// new ones, and when it has returned the new ones; a call that fails leaves the old ones and no other file.
func TestReplaceFileIsOneStep(t *testing.T) {
	f := crashfs.New()
	if err := vfs.ReplaceFile(f, "/x", []byte("old")); err != nil {
		t.Fatal(err)
	}
	from := f.Len()
	if err := vfs.ReplaceFile(f, "/x", []byte("the new one")); err != nil {
		t.Fatal(err)
	}
	w := f.Walk()
	for w.Step() {
		for seed := range uint64(40) {
			b, _, err := vfs.ReadFile(w.Crash(crashfs.Model(seed%4), seed), "/x", 0)
			got := string(b)
			if w.At() >= from && (err != nil || got != "old" && got != "the new one") || w.At() == w.Len() && got != "the new one" {
				t.Fatalf("behind call %d of %d: %q, %v", w.At(), w.Len(), got, err)
			}
		}
	}
	for _, kind := range []errorfs.Kind{errorfs.Create, errorfs.Write, errorfs.Sync, errorfs.Rename} {
		fsys := errorfs.Wrap(f, func(op errorfs.Op) (fault errorfs.Fault) {
			if op.Kind == kind {
				fault = errorfs.Fault{Err: syscall.EIO, Written: op.Size / 2}
			}
			return fault
		})
		if err := vfs.ReplaceFile(fsys, "/x", []byte("another")); !errors.Is(err, syscall.EIO) {
			t.Errorf("failing %s: %v", kind, err)
		}
		names, err := vfs.Names(f, "/")
		b, _, rerr := vfs.ReadFile(f, "/x", 0)
		if err := errors.Join(err, rerr); err != nil || len(names) != 1 || string(b) != "the new one" {
			t.Errorf("after a failing %s: %v, %q, %v", kind, names, b, err)
		}
	}
}

// TestFaults: a call fails before it takes effect, after it did, or in between.
func TestFaults(t *testing.T) {
	var fault errorfs.Fault
	var last errorfs.Op
	under := crashfs.New()
	fsys := errorfs.Wrap(under, func(op errorfs.Op) errorfs.Fault { last = op; return fault })
	f, err := fsys.Create("f")
	if err != nil {
		t.Fatal(err)
	}
	fault = errorfs.Fault{Err: syscall.ENOSPC, Written: 2}
	if n, err := f.WriteAt([]byte("text"), 0); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("wrote %d, %v", n, err)
	}
	if last != (errorfs.Op{Kind: errorfs.Write, Name: "f", Size: 4}) {
		t.Errorf("asked about %+v", last)
	}
	fault = errorfs.Fault{Err: syscall.EIO, Made: true}
	for what, err := range map[string]error{"truncate": f.Truncate(1), "rename": fsys.Rename("f", "g"), "mkdir": fsys.Mkdir("d")} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", what, err)
		}
	}
	fault.Made = false
	for what, err := range map[string]error{"remove": fsys.Remove("g"), "link": fsys.Link("g", "h"), "sync": f.Sync()} {
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if file, err := fsys.Open("g"); file != nil || !errors.Is(err, syscall.EIO) {
		t.Errorf("open: %v, %v", file, err)
	}
	list, err := under.List(".")
	if err != nil || len(list) != 2 || list[0].Name != "d" || list[1].Name != "g" {
		t.Errorf("left behind: %v, %v", list, err)
	}
	if st, err := under.Stat("g"); st.Size != 1 || err != nil {
		t.Errorf("left behind: %+v, %v", st, err)
	}
}
