package crashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
)

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, f vfs.File, off int64, b []byte) {
	t.Helper()
	_, err := f.WriteAt(b, off)
	ok(t, err)
}

// end is a walker behind the last call.
func end(f *FS) *Walker {
	w := f.Walk()
	for w.Step() {
	}
	return w
}

// content gives what a name holds; nil when it is absent.
func content(f *FS, name string) []byte {
	h, err := f.Open(name)
	if err != nil {
		return nil
	}
	n, _ := h.Size()
	b := make([]byte, n)
	_, _ = h.ReadAt(b, 0)
	return b
}

// outcomes counts what 300 crashes of a model leave, as look puts it.
func outcomes(w *Walker, m Model, look func(*FS) string) map[string]int {
	seen := map[string]int{}
	for seed := range uint64(300) {
		seen[look(w.Crash(m, seed))]++
	}
	return seen
}

func wantOutcomes(t *testing.T, what string, got map[string]int, want ...string) {
	t.Helper()
	for _, w := range want {
		if got[w] == 0 {
			t.Errorf("%s: never %q in %v", what, w, got)
		}
	}
	for g := range got {
		if !slices.Contains(want, g) {
			t.Errorf("%s: %q must not happen", what, g)
		}
	}
}

// TestNames: what may become of a file that moves from one directory to another.
func TestNames(t *testing.T) {
	f := New()
	ok(t, f.Mkdir("a"), f.Mkdir("b"), f.SyncDir("/"))
	h := must[vfs.File](t)(f.Create("a/x"))
	write(t, h, 0, []byte("x"))
	ok(t, h.Sync(), f.SyncDir("a"), f.Rename("a/x", "b/y"))
	look := func(f *FS) string { return fmt.Sprintf("%s,%s", content(f, "a/x"), content(f, "b/y")) }
	wantOutcomes(t, "dropped", outcomes(end(f), Dropped, look), "x,")
	wantOutcomes(t, "kept", outcomes(end(f), Kept, look), ",x")
	wantOutcomes(t, "ordered", outcomes(end(f), Ordered, look), "x,", ",x")
	wantOutcomes(t, "strict", outcomes(end(f), Strict, look), "x,", ",x", "x,x", ",")
	ok(t, f.SyncDir("b"))
	wantOutcomes(t, "strict, new directory synced", outcomes(end(f), Strict, look), ",x", "x,x")
	wantOutcomes(t, "ordered, new directory synced", outcomes(end(f), Ordered, look), ",x")
}

// TestReplace: a name that is renamed over is old or new, and never absent.
func TestReplace(t *testing.T) {
	f := New()
	for _, s := range []string{"old", "new"} {
		h := must[vfs.File](t)(f.Create(s))
		write(t, h, 0, []byte(s))
		ok(t, h.Sync())
	}
	ok(t, f.SyncDir("."), f.Rename("new", "old"))
	look := func(f *FS) string { return string(content(f, "old")) }
	for _, m := range []Model{Ordered, Strict} {
		wantOutcomes(t, m.String(), outcomes(end(f), m, look), "old", "new")
	}
}

// TestNameWithoutSync: fsync of a file makes its name durable on a journaling file
// system, and not by POSIX.
func TestNameWithoutSync(t *testing.T) {
	f := New()
	h := must[vfs.File](t)(f.Create("x"))
	write(t, h, 0, []byte("x"))
	ok(t, h.Sync())
	look := func(f *FS) string { return string(content(f, "x")) }
	wantOutcomes(t, "ordered", outcomes(end(f), Ordered, look), "x")
	wantOutcomes(t, "strict", outcomes(end(f), Strict, look), "x", "")
	wantOutcomes(t, "dropped", outcomes(end(f), Dropped, look), "")
}

// TestBytes: synced bytes survive; unsynced ones are dropped, kept, torn and reordered.
func TestBytes(t *testing.T) {
	f := New()
	h := must[vfs.File](t)(f.Create("x"))
	base := bytes.Repeat([]byte{1}, 100)
	write(t, h, 0, base)
	ok(t, h.Sync(), f.SyncDir("."))
	write(t, h, 100, bytes.Repeat([]byte{2}, 4000))
	look := func(f *FS) string {
		b := content(f, "x")
		if !bytes.HasPrefix(b, base) {
			return "lost synced bytes"
		}
		tail := b[100:]
		n := len(bytes.TrimLeft(tail, "\x02")) // behind the first byte that is not as written
		switch {
		case len(tail) == 0:
			return "dropped"
		case n == 0 && len(tail) == 4000:
			return "kept"
		case n == 0 && len(b)%SectorSize == 0:
			return "cut at a sector"
		case n == 0:
			return "cut at a byte"
		}
		return "holes"
	}
	wantOutcomes(t, "dropped", outcomes(end(f), Dropped, look), "dropped")
	wantOutcomes(t, "kept", outcomes(end(f), Kept, look), "kept")
	wantOutcomes(t, "ordered", outcomes(end(f), Ordered, look), "dropped", "kept", "cut at a sector")
	wantOutcomes(t, "strict", outcomes(end(f), Strict, look), "dropped", "kept", "cut at a sector", "cut at a byte", "holes")
	ok(t, h.Sync())
	wantOutcomes(t, "synced", outcomes(end(f), Strict, look), "kept")
	ok(t, h.Truncate(100))
	wantOutcomes(t, "truncated, ordered", outcomes(end(f), Ordered, look), "kept", "dropped")
}

// TestKill: the death of a process loses nothing, and makes nothing durable.
func TestKill(t *testing.T) {
	f := New()
	h := must[vfs.File](t)(f.Create("x"))
	write(t, h, 0, []byte("x"))
	k := end(f).Kill()
	if got := content(k, "x"); string(got) != "x" {
		t.Errorf("after the kill: %q", got)
	}
	if got := content(end(k).Crash(Dropped, 0), "x"); got != nil {
		t.Errorf("after kill and power loss: %q", got)
	}
	ok(t, must[vfs.File](t)(k.Open("x")).Sync(), k.SyncDir("."))
	if got := content(end(k).Crash(Dropped, 0), "x"); string(got) != "x" {
		t.Errorf("synced by the next process: %q", got)
	}
	if content(end(f).Crash(Dropped, 0), "x") != nil {
		t.Error("the branch wrote into its origin")
	}
}

// TestRepeats: a seed gives the same disk each time, and disks that differ have fingerprints that do.
func TestRepeats(t *testing.T) {
	f := New()
	for i := range 5 {
		h := must[vfs.File](t)(f.Create(fmt.Sprint("x", i)))
		write(t, h, 0, bytes.Repeat([]byte{byte(i)}, 3000))
	}
	prints := map[uint64]bool{}
	for seed := range uint64(100) {
		a, b := end(f).Crash(Strict, seed).Fingerprint(), end(f).Crash(Strict, seed).Fingerprint()
		if a != b {
			t.Fatalf("seed %d gives two disks", seed)
		}
		prints[a] = true
	}
	if len(prints) < 60 {
		t.Errorf("only %d disks of 100 seeds", len(prints))
	}
}

// TestErrors: what a real file system refuses is refused.
func TestErrors(t *testing.T) {
	f := New()
	ok(t, f.Mkdir("a"), f.Mkdir("a/b"))
	_, err := f.Create("a/b")
	_, missing := f.Open("c")
	_, parent := f.Create("c/d")
	if !errors.Is(err, fs.ErrExist) || !errors.Is(missing, fs.ErrNotExist) || !errors.Is(parent, fs.ErrNotExist) ||
		!errors.Is(f.Mkdir("a"), fs.ErrExist) || !errors.Is(f.Remove("c"), fs.ErrNotExist) || f.Remove("a") == nil ||
		!errors.Is(f.Rename("c", "d"), fs.ErrNotExist) || !errors.Is(f.Link("a/b", "a"), fs.ErrExist) {
		t.Error("an impossible call did not fail as it should")
	}
	l := must[interface{ Close() error }](t)(f.Lock("l"))
	if _, err := f.Lock("l"); err == nil {
		t.Error("the lock was given twice")
	}
	ok(t, l.Close())
	n := f.Len()
	f.Lie = func(o Op) bool { return o.Kind == SyncDir }
	ok(t, f.SyncDir("a"))
	if f.Len() != n {
		t.Error("a lie was recorded")
	}
}
