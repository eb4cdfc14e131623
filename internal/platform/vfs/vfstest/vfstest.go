// Package vfstest is the test that every vfs.FS must pass.
package vfstest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

// Run tests a file system; open gives an empty one, whose root is ".".
func Run(t *testing.T, open func(t *testing.T) vfs.FS) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, fsys vfs.FS)
	}{
		{"files", files}, {"names", names}, {"directories", directories}, {"locks", locks}, {"helpers", helpers},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: %v, want %v", what, err, target)
	}
}

func create(t *testing.T, fsys vfs.FS, name, text string) {
	t.Helper()
	must(t, vfs.WriteFile(fsys, name, []byte(text)))
}

func content(t *testing.T, fsys vfs.FS, name string) string {
	t.Helper()
	b, _, err := vfs.ReadFile(fsys, name, 0)
	must(t, err)
	return string(b)
}

func files(t *testing.T, fsys vfs.FS) {
	f, err := fsys.Create("f")
	must(t, err)
	if _, err := f.WriteAt([]byte("world"), 6); err != nil { // behind the end: zeros before it
		t.Fatal(err)
	}
	if n, err := f.WriteAt([]byte("hello"), 0); n != 5 || err != nil {
		t.Errorf("wrote %d, %v", n, err)
	}
	b := make([]byte, 20)
	if n, err := f.ReadAt(b, 0); n != 11 || err != io.EOF || string(b[:n]) != "hello\x00world" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	if n, err := f.ReadAt(b[:5], 6); n != 5 || err != nil && err != io.EOF || string(b[:5]) != "world" {
		t.Errorf("read %q, %v", b[:n], err)
	}
	if n, err := f.ReadAt(b, 11); n != 0 || err != io.EOF {
		t.Errorf("read %d bytes at the end, %v", n, err)
	}
	must(t, f.Truncate(5), f.Allocate(5, 100), f.Truncate(101), f.Sync())
	if n, err := f.Size(); n != 101 || err != nil {
		t.Errorf("size %d, %v", n, err)
	}
	b = make([]byte, 101)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF || !bytes.Equal(b, append([]byte("hello"), make([]byte, 96)...)) {
		t.Errorf("after truncating and allocating: %q, %v", b, err)
	}
	must(t, f.Close())
	g, err := fsys.Open("f")
	must(t, err)
	if n, _ := g.Size(); n != 101 {
		t.Errorf("opened again: %d bytes", n)
	}
	_, err = g.WriteAt([]byte("J"), 0)
	must(t, err, g.Close())
	if st, err := fsys.Stat("f"); err != nil || st.Size != 101 || !st.Type.IsRegular() {
		t.Errorf("stat: %+v, %v", st, err)
	}
	_, err = fsys.Create("f")
	want(t, "create over a file", err, fs.ErrExist)
	_, err = fsys.Open("g")
	want(t, "open nothing", err, fs.ErrNotExist)
	_, err = fsys.Stat("g")
	want(t, "stat nothing", err, fs.ErrNotExist)
	_, err = fsys.Create("no/f")
	want(t, "create in no directory", err, fs.ErrNotExist)
}

func names(t *testing.T, fsys vfs.FS) {
	must(t, fsys.Mkdir("d"))
	create(t, fsys, "a", "1")
	create(t, fsys, "d/b", "2")
	must(t, fsys.Link("a", "d/c"))
	want(t, "link to a taken name", fsys.Link("a", "d/b"), fs.ErrExist)
	want(t, "link of nothing", fsys.Link("x", "y"), fs.ErrNotExist)
	if got := content(t, fsys, "d/c"); got != "1" {
		t.Errorf("linked: %q", got)
	}
	f, err := fsys.Open("d/b") // what is open stays, whatever becomes of its name
	must(t, err, fsys.Rename("a", "d/b"))
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF || b[0] != '2' {
		t.Errorf("the replaced file reads %q, %v", b, err)
	}
	must(t, f.Close())
	if got := content(t, fsys, "d/b"); got != "1" {
		t.Errorf("renamed: %q", got)
	}
	_, err = fsys.Open("a")
	want(t, "open the old name", err, fs.ErrNotExist)
	want(t, "rename nothing", fsys.Rename("a", "z"), fs.ErrNotExist)
	must(t, fsys.Rename("d/b", "d/c")) // two names of one file: rename(2) leaves both
	must(t, fsys.Remove("d/c"))
	want(t, "remove nothing", fsys.Remove("d/c"), fs.ErrNotExist)
	must(t, fsys.SyncDir("d"), fsys.SyncDir("."))
}

func directories(t *testing.T, fsys vfs.FS) {
	must(t, fsys.Mkdir("d"), fsys.Mkdir("d/e"))
	want(t, "make a directory again", fsys.Mkdir("d"), fs.ErrExist)
	want(t, "make a directory below nothing", fsys.Mkdir("x/y"), fs.ErrNotExist)
	for _, n := range []string{"d/z", "d/b", "d/f"} {
		create(t, fsys, n, "")
	}
	list, err := fsys.List("d")
	must(t, err)
	if want := []vfs.Entry{{Name: "b"}, {Name: "e", Type: fs.ModeDir}, {Name: "f"}, {Name: "z"}}; !slices.Equal(list, want) {
		t.Errorf("listed %v, want %v", list, want)
	}
	if st, err := fsys.Stat("d/e"); err != nil || !st.Type.IsDir() {
		t.Errorf("stat: %+v, %v", st, err)
	}
	if fsys.Remove("d") == nil {
		t.Error("a directory with files was removed")
	}
	must(t, fsys.Remove("d/e"))
	_, err = fsys.List("d/e")
	want(t, "list nothing", err, fs.ErrNotExist)
	want(t, "sync nothing", fsys.SyncDir("d/e"), fs.ErrNotExist)
	if bytes, files, err := fsys.Free("d"); bytes <= 0 || files <= 0 || err != nil {
		t.Errorf("free: %d bytes, %d files, %v", bytes, files, err)
	}
}

func locks(t *testing.T, fsys vfs.FS) {
	l, err := fsys.Lock("lock")
	must(t, err)
	_, err = fsys.Lock("lock")
	want(t, "lock twice", err, vfs.ErrLocked)
	other, err := fsys.Lock("other")
	must(t, err, other.Close(), l.Close())
	l, err = fsys.Lock("lock")
	must(t, err, l.Close())
	list, err := fsys.List(".")
	must(t, err)
	if len(list) != 2 || !list[0].Type.IsRegular() {
		t.Errorf("files of the locks: %v", list)
	}
}

func helpers(t *testing.T, fsys vfs.FS) {
	for range 2 {
		must(t, vfs.MkdirAll(fsys, "a/b/c"), vfs.EnsureDir(fsys, "a/x"))
	}
	create(t, fsys, "a/f", "text")
	for what, err := range map[string]error{
		"MkdirAll of a file": vfs.MkdirAll(fsys, "a/f"), "MkdirAll below a file": vfs.MkdirAll(fsys, "a/f/d"),
		"EnsureDir of a file": vfs.EnsureDir(fsys, "a/f"), "WriteFile over a file": vfs.WriteFile(fsys, "a/f"),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if b, size, err := vfs.ReadFile(fsys, "a/f", 2); string(b) != "te" || size != 4 || err != nil {
		t.Errorf("the first 2 bytes: %q of %d, %v", b, size, err)
	}
	for _, text := range []string{"first", "second one"} {
		must(t, vfs.ReplaceFile(fsys, "a/replaced", []byte(text)))
		if got := content(t, fsys, "a/replaced"); got != text {
			t.Errorf("replaced by %q: %q", text, got)
		}
	}
	must(t, fsys.Remove("a/replaced"))
	must(t, fsys.Mkdir("aside"))
	for i, want := range []string{"aside/a-b-f", "aside/a-b-f.1", ""} {
		if i < 2 {
			create(t, fsys, "a/b/f", want)
		}
		to, err := vfs.MoveAside(fsys, "a/b/f", "aside")
		if to != want || err != nil || i < 2 && content(t, fsys, to) != want {
			t.Errorf("moved aside to %q, %v; want %q", to, err, want)
		}
	}
	if names, err := vfs.Names(fsys, "."); err != nil || !slices.Equal(names, []string{"a", "aside"}) {
		t.Errorf("names %v, %v", names, err)
	}
	for _, name := range []string{"a/f", "a/new"} {
		f, err := vfs.CreateEmpty(fsys, name)
		must(t, err)
		if n, err := f.Size(); n != 0 || err != nil {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		must(t, vfs.WriteZeros(f, 0, 3<<20), f.Close())
		if st, err := fsys.Stat(name); st.Size != 3<<20 || err != nil {
			t.Errorf("%s: %+v, %v", name, st, err)
		}
	}
}
