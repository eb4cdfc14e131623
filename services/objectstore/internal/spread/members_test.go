package spread

import (
	"context"
	"errors"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
)

// outBecause gives why a place is out.
func (r *rig) outBecause(name string) error {
	for _, p := range r.Stats(context.Background()).Places {
		if p.Name == name {
			return p.Err
		}
	}
	r.t.Fatalf("no place %s", name)
	return nil
}

// TestBlankPlaceIsNotUsed: a directory that had files and has none is a drive that is not mounted;
// it is used again when the drive is back, or when somebody says that it was replaced.
func TestBlankPlaceIsNotUsed(t *testing.T) {
	r := newRig(t, 3, 2)
	b := bytesOf(100_000)
	r.check(r.put(id(1), b))
	r.encode(id(1), code21)
	r.stop()
	r.check(r.fs.Rename("b", "unmounted"))
	r.check(r.fs.Mkdir("b"))
	r.start()
	if err := r.outBecause("b"); !errors.Is(err, place.ErrOut) || !strings.Contains(err.Error(), "not mounted") {
		t.Error(err)
	}
	if names, err := vfs.Names(r.fs, "b"); err != nil || len(names) > 1 { // but the lock
		t.Errorf("written to a drive that is not there: %v, %v", names, err)
	}
	r.want(id(1), b)
	r.check(r.put(id(2), b))
	r.check(r.fs.Rename("b", "blank"))
	r.check(r.fs.Rename("unmounted", "b"))
	r.Retry(context.Background())
	r.check(r.outBecause("b"))
	r.stop()
	// Now it is really another drive.
	r.check(r.fs.Rename("b", "old"))
	r.check(r.fs.Rename("blank", "b"))
	if err := Replace(vfstest.Sub(r.fs, "main"), "x"); err == nil {
		t.Error("a place that is not there was replaced")
	}
	r.check(Replace(vfstest.Sub(r.fs, "main"), "b"))
	r.start()
	r.check(r.outBecause("b"))
	r.want(id(1), b)
	r.stop()
	// And the old one must not come back by accident.
	r.check(r.fs.Rename("b", "new"))
	r.check(r.fs.Rename("old", "b"))
	r.start()
	if err := r.outBecause("b"); !errors.Is(err, place.ErrOut) || !strings.Contains(err.Error(), "was replaced") {
		t.Error(err)
	}
}

// TestSwappedPlaces: two drives that are mounted at each other's directories are used as what they are.
func TestSwappedPlaces(t *testing.T) {
	r := newRig(t, 3, 2)
	b := bytesOf(100_000)
	r.check(r.put(id(1), b))
	r.check(r.put(id(2), b))
	r.encode(id(2), code21)
	r.stop()
	r.check(r.fs.Rename("a", "x"))
	r.check(r.fs.Rename("b", "a"))
	r.check(r.fs.Rename("x", "b"))
	r.start()
	for _, n := range r.names {
		r.check(r.outBecause(n))
	}
	r.want(id(1), b)
	r.want(id(2), b)
	r.check(r.put(id(3), b))
}

// TestForeignPlaces: the places of another store, a copy of a place, and a place without identity
// are not used, and nothing of them is changed.
func TestForeignPlaces(t *testing.T) {
	other := newRig(t, 2, 1)
	other.check(other.put(id(7), bytesOf(10)))
	r := newRig(t, 2, 2)
	r.check(r.put(id(1), bytesOf(10)))
	r.stop()
	foreign, _, err := vfs.ReadFile(other.fs, "a/PLACE", 0)
	r.check(err)
	mine, _, err := vfs.ReadFile(r.fs, "a/PLACE", 0)
	r.check(err)
	broken := append([]byte(nil), mine...)
	broken[20] ^= 1
	for name, file := range map[string][]byte{"another store's": foreign, "a copy": mine, "broken": broken, "none": nil} {
		r.check(r.fs.Remove("b/PLACE"))
		if file != nil {
			r.check(vfs.WriteFile(r.fs, "b/PLACE", file))
		}
		r.start()
		if err := r.outBecause("b"); !errors.Is(err, place.ErrOut) {
			t.Errorf("%s identity: %v", name, err)
		}
		r.want(id(1), bytesOf(10))
		r.stop()
		if file == nil {
			r.check(vfs.WriteFile(r.fs, "b/PLACE", nil))
		}
	}
}

// TestRolledBackPlace: a drive with an older state lacks files and has some too many; neither does harm.
func TestRolledBackPlace(t *testing.T) {
	r := newRig(t, 3, 2)
	b := bytesOf(100_000)
	r.check(r.put(id(1), b))
	r.check(r.put(id(2), b))
	r.stop()
	w := r.fs.Walk()
	for w.Step() {
	}
	before := w.Crash(crashfs.Kept, 0)
	r.start()
	r.check(r.Remove(id(2)))
	r.check(r.put(id(3), b))
	r.stop()
	erase(r.fs, "a")
	copyTree(t, before, r.fs, "a")
	r.start()
	r.check(r.outBecause("a"))
	r.want(id(1), b)
	r.want(id(3), b)
	var ids []string
	r.check(r.List(func(id string) error {
		if ids = append(ids, id); id == "00000000000000000000000000000002" {
			return r.Remove(id) // as the engine does with what no record names
		}
		return nil
	}))
	if len(ids) < 2 || len(r.where(id(2))) > 0 {
		t.Errorf("%v, %v", ids, r.where(id(2)))
	}
}

func copyTree(t *testing.T, from, to vfs.FS, dir string) {
	t.Helper()
	list, err := from.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		name := dir + "/" + e.Name
		if e.Type.IsDir() {
			if err := vfs.EnsureDir(to, name); err != nil {
				t.Fatal(err)
			}
			copyTree(t, from, to, name)
			continue
		}
		b, _, err := vfs.ReadFile(from, name, 0)
		if err == nil {
			err = vfs.WriteFile(to, name, b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestSettingsMustNameAllPlaces: leaving out a place with files is refused, and so are copies that
// there are no places for.
func TestSettingsMustNameAllPlaces(t *testing.T) {
	r := newRig(t, 3, 2)
	r.stop()
	main := vfstest.Sub(r.fs, "main")
	if _, err := Open(context.Background(), Options{FS: main, Slots: slotsOf(r.fs, "a", "b"), AckCopies: 2}); err == nil || !strings.Contains(err.Error(), "settings: c.") {
		t.Error(err)
	}
	if _, err := Open(context.Background(), Options{FS: main, Slots: slotsOf(r.fs, "a", "b", "c"), AckCopies: 4}); err == nil {
		t.Error("four copies on three places")
	}
	if there, err := HasMembers(main); !there || err != nil {
		t.Error(there, err)
	}
	f, err := r.fs.Open("main/PLACES")
	r.check(err)
	_, err = f.WriteAt([]byte{'x'}, 12)
	r.check(errors.Join(err, f.Close()))
	if _, err := Open(context.Background(), Options{FS: main, Slots: slotsOf(r.fs, r.names...), AckCopies: 2}); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Error(err)
	}
}

// TestLockedPlace: a place that another process has open is out.
func TestLockedPlace(t *testing.T) {
	r := newRig(t, 2, 2)
	second, err := Open(context.Background(), Options{FS: vfstest.Sub(r.fs, "main"), Slots: slotsOf(r.fs, r.names...), AckCopies: 2})
	r.check(err)
	r.check(second.Recover())
	if _, err := second.Create(id(1)); !errors.Is(err, body.ErrUnavailable) || !errors.Is(err, vfs.ErrLocked) {
		t.Error(err)
	}
	r.check(second.Close())
}
