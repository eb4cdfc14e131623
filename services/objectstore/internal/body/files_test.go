package body

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
)

const anID = "ab000000000000000000000000000001"

// TestFilesMakeFoldersDurable: who finds the folder of another's body file may use it only
// when its name is durable.
func TestFilesMakeFoldersDurable(t *testing.T) {
	f := crashfs.New()
	s := NewFiles(f, nil)
	if err := s.Recover(); err != nil {
		t.Fatal(err)
	}
	checked := false
	f.Lie = func(o crashfs.Op) bool {
		if o.Kind == crashfs.SyncDir && o.Path == Dir {
			checked = true
			if s.mu.TryLock() {
				t.Error("the folder is open to others before its name is durable")
				s.mu.Unlock()
			}
		}
		return false
	}
	w, err := s.Create(anID)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Finish(); err != nil || !checked {
		t.Errorf("folder made durable: %t, %v", checked, err)
	}
}

// TestFilesFail: a failed sync says that nothing is known, a full disk that the body is not
// there, and neither leaves anything behind that Discard does not remove.
func TestFilesFail(t *testing.T) {
	for _, c := range []struct {
		kind     errorfs.Kind
		name     string // begins with
		err      error
		unsynced bool
	}{
		{errorfs.Create, tmpDir, syscall.ENOSPC, false},
		{errorfs.Write, tmpDir, syscall.ENOSPC, false},
		{errorfs.Sync, tmpDir, syscall.ENOSPC, false},
		{errorfs.Sync, tmpDir, syscall.EIO, true},
		{errorfs.Mkdir, Dir, syscall.ENOSPC, false},
		{errorfs.Rename, Dir, syscall.ENOSPC, false},
		{errorfs.SyncDir, Dir + "/ab", syscall.EIO, true},
		{errorfs.SyncDir, Dir, syscall.EIO, true},
	} {
		t.Run(fmt.Sprintf("%s %s %v", c.kind, c.name, c.err), func(t *testing.T) {
			mem := crashfs.New()
			armed := false
			s := NewFiles(errorfs.Wrap(mem, func(op errorfs.Op) errorfs.Fault {
				if armed && op.Kind == c.kind && strings.HasPrefix(op.Name, c.name) {
					return errorfs.Fault{Err: c.err, Written: op.Size / 2}
				}
				return errorfs.Fault{}
			}), nil)
			if err := s.Recover(); err != nil {
				t.Fatal(err)
			}
			armed = true
			w, err := s.Create(anID)
			if err == nil {
				_, err = w.Write(make([]byte, 1000))
			}
			if err == nil {
				err = w.Finish()
			}
			if !errors.Is(err, c.err) || errors.Is(err, ErrUnsynced) != c.unsynced {
				t.Errorf("%v; unsynced should be %t", err, c.unsynced)
			}
			if w != nil {
				w.Discard()
			}
			for _, d := range []string{tmpDir, Dir + "/ab"} {
				if names, err := vfs.Names(mem, d); err != nil && !errors.Is(err, fs.ErrNotExist) || len(names) > 0 {
					t.Errorf("%s: %v, %v", d, names, err)
				}
			}
		})
	}
}

// TestFilesSetAside: two bodies of one id, one after the other, are both kept.
func TestFilesSetAside(t *testing.T) {
	f := crashfs.New()
	s := NewFiles(f, nil)
	if err := s.Recover(); err != nil {
		t.Fatal(err)
	}
	var places []string
	for i := range 2 {
		w, err := s.Create(anID)
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write([]byte{byte(i)})
		if err := errors.Join(err, w.Finish()); err != nil {
			t.Fatal(err)
		}
		place, err := s.SetAside(anID)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, place)
	}
	if want := []string{"quarantine/blobs-ab-" + anID, "quarantine/blobs-ab-" + anID + ".1"}; !slices.Equal(places, want) {
		t.Errorf("%v, want %v", places, want)
	}
	for i, p := range places {
		if b, _, err := vfs.ReadFile(f, p, 0); err != nil || len(b) != 1 || b[0] != byte(i) {
			t.Errorf("%s: %v, %v", p, b, err)
		}
	}
}
