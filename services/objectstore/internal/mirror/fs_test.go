package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// disks are the drives of a test: file systems that lose power, with faults in front.
type disks struct {
	under []*crashfs.FS
	fault []atomic.Pointer[func(errorfs.Op) errorfs.Fault]
}

func newDisks(n int) *disks {
	d := &disks{fault: make([]atomic.Pointer[func(errorfs.Op) errorfs.Fault], n)}
	for range n {
		d.under = append(d.under, crashfs.New())
	}
	return d
}

// fail makes the calls of one drive fail that are of these kinds; without kinds all of them.
func (d *disks) fail(i int, err error, kinds ...errorfs.Kind) {
	inject := func(op errorfs.Op) errorfs.Fault {
		if len(kinds) == 0 || slices.Contains(kinds, op.Kind) {
			return errorfs.Fault{Err: err}
		}
		return errorfs.Fault{}
	}
	d.fault[i].Store(&inject)
}

func (d *disks) options(there ...int) Options {
	if there == nil {
		for i := range d.under {
			there = append(there, i)
		}
	}
	o := Options{Retry: time.Millisecond}
	for _, i := range there {
		inject := func(op errorfs.Op) errorfs.Fault {
			if p := d.fault[i].Load(); p != nil {
				return (*p)(op)
			}
			return errorfs.Fault{}
		}
		o.Drives = append(o.Drives, Drive{fmt.Sprintf("drive%d", i), errorfs.Wrap(d.under[i], inject)})
	}
	return o
}

// heal takes all faults away.
func (d *disks) heal() {
	for i := range d.fault {
		d.fault[i].Store(nil)
	}
}

func (d *disks) open(t *testing.T, there ...int) *FS {
	t.Helper()
	f, err := Open(d.options(there...))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// write makes a file durable, with its name.
func write(t *testing.T, f vfs.FS, name, text string) {
	t.Helper()
	must(t, vfs.WriteFile(f, name, []byte(text)), f.SyncDir("."))
}

func text(f vfs.FS, name string) string {
	b, _, err := vfs.ReadFile(f, name, 0)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// tree gives all that is on a file system but what each drive has for itself.
func tree(t *testing.T, f vfs.FS, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	list, err := f.List(dir)
	must(t, err)
	for _, e := range list {
		name := e.Name
		if dir != "." {
			name = dir + "/" + name
		}
		switch {
		case own(name):
		case e.Type.IsDir():
			out[name] = "/"
			for k, v := range tree(t, f, name) {
				out[k] = v
			}
		default:
			out[name] = text(f, name)
		}
	}
	return out
}

func (d *disks) wantAlike(t *testing.T) {
	t.Helper()
	first := fmt.Sprint(tree(t, d.under[0], "."))
	for i, u := range d.under[1:] {
		if got := fmt.Sprint(tree(t, u, ".")); got != first {
			t.Errorf("drive %d has %.300s\ndrive 0 has %.300s", i+1, got, first)
		}
	}
}

func states(f *FS) (out []string) {
	for _, d := range f.Status().Drives {
		out = append(out, string(d.State))
	}
	return out
}

// run runs the background work until every drive is in sync.
func run(t *testing.T, f *FS) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	for i := 0; f.Status().InSync < len(f.drives); i++ {
		if i > 90_000 { // a minute and a half at least
			t.Fatalf("not in sync: %+v", f.Status())
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	must(t, <-ended)
}

// TestMirrorIsAFileSystem: what holds of one directory holds of several drives, and all have the same afterwards.
func TestMirrorIsAFileSystem(t *testing.T) {
	for n := 1; n <= 3; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			vfstest.Run(t, func(t *testing.T) vfs.FS {
				d := newDisks(n)
				t.Cleanup(func() { d.wantAlike(t) })
				return d.open(t)
			})
		})
	}
}

// TestMirrorCountsFailures: names that are absent or taken are answers, and only what a drive does not do is counted.
func TestMirrorCountsFailures(t *testing.T) {
	d := newDisks(2)
	f := d.open(t)
	must(t, f.Mkdir("d"))
	if err := f.Mkdir("d"); !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	if err := f.Remove("absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, drive := range f.Status().Drives {
		if drive.Errors != 0 {
			t.Errorf("%s has %d failures", drive.Name, drive.Errors)
		}
	}
	d.fail(1, syscall.EIO, errorfs.Mkdir)
	must(t, f.Mkdir("e"))
	if list := f.Status().Drives; list[0].Errors != 0 || list[1].Errors != 1 {
		t.Errorf("%d and %d failures, want 0 and 1", list[0].Errors, list[1].Errors)
	}
	must(t, f.Close())
}

// TestMirrorPutsOut: whichever call fails on one drive, it succeeds; the drive gets nothing more, and the next start knows it.
func TestMirrorPutsOut(t *testing.T) {
	for _, kind := range []errorfs.Kind{errorfs.Create, errorfs.Write, errorfs.Sync, errorfs.SyncDir, errorfs.Rename, errorfs.Link, errorfs.Mkdir, errorfs.Remove, errorfs.Truncate, errorfs.Allocate} {
		for bad := range 2 {
			t.Run(fmt.Sprintf("%s on %d", kind, bad), func(t *testing.T) {
				d := newDisks(2)
				f := d.open(t)
				write(t, f, "old", "x")
				d.fail(bad, syscall.EIO, kind)
				h, err := f.Create("a")
				must(t, err)
				_, err = h.WriteAt([]byte("hello"), 0)
				must(t, err, h.Allocate(5, 10), h.Truncate(5), h.Sync(), f.SyncDir("."), f.Rename("a", "b"), f.Link("b", "c"), f.Mkdir("d"), f.Remove("old"), h.Close())
				if got := states(f); got[bad] != "failed" || got[1-bad] != "in sync" {
					t.Fatalf("drives are %v", got)
				}
				d.heal()
				calls := d.under[bad].Len()
				write(t, f, "later", "y")
				if d.under[bad].Len() != calls {
					t.Error("a drive that was put out was written to")
				}
				lost := false
				select {
				case <-f.IndexLost():
					lost = true
				default:
				}
				if lost != (bad == 0) {
					t.Errorf("the index is lost: %v", lost)
				}
				must(t, f.Close())
				// Alone it does not open: it knows of no change, and that another may know one is enough.
				if _, err := Open(d.options(bad)); !errors.Is(err, ErrMajority) || !strings.Contains(err.Error(), "drive") {
					t.Errorf("the drive that was put out opens alone: %v", err)
				}
				f = d.open(t, 1-bad) // the other one does
				must(t, f.Close())
				f = d.open(t)
				if got := states(f); got[bad] != "waiting" || text(f, "later") != "y" || text(f, "b") != "hello" {
					t.Errorf("drives are %v", got)
				}
				run(t, f)
				must(t, f.Close())
				d.wantAlike(t)
			})
		}
	}
}

// TestMirrorFullDrive: a full disk is the caller's to know, and puts nobody out; a failed fsync puts out whatever its reason.
func TestMirrorFullDrive(t *testing.T) {
	d := newDisks(3)
	f := d.open(t)
	h, err := f.Create("a")
	must(t, err)
	d.fail(2, syscall.ENOSPC, errorfs.Write, errorfs.Create, errorfs.Allocate, errorfs.Mkdir)
	if _, err := h.WriteAt([]byte("x"), 0); !vfs.IsFull(err) {
		t.Errorf("write: %v", err)
	}
	must(t, h.Truncate(0))
	if _, err := f.Create("b"); !vfs.IsFull(err) {
		t.Errorf("create: %v", err)
	}
	if err := f.Mkdir("d"); !vfs.IsFull(err) {
		t.Errorf("mkdir: %v", err)
	}
	if err := h.Allocate(0, 10); !vfs.IsFull(err) {
		t.Errorf("allocate: %v", err)
	}
	must(t, h.Truncate(0))
	if _, err := f.Stat("b"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that could not be made on all drives: %v", err)
	}
	if f.Status().InSync != 3 {
		t.Errorf("drives are %v", states(f))
	}
	d.heal()
	must(t, f.Mkdir("d")) // some have it
	d.fail(2, syscall.ENOSPC, errorfs.Sync)
	must(t, h.Sync())
	if got := states(f); got[2] != "failed" {
		t.Errorf("drives are %v", got)
	}
}

// TestMirrorLosesItsDirectory: a drive that was unmounted, and shows an empty directory, is put out.
func TestMirrorLosesItsDirectory(t *testing.T) {
	d := newDisks(2)
	f := d.open(t)
	must(t, f.Mkdir("d"))
	d.fail(1, fs.ErrNotExist)
	h, err := f.Create("d/a")
	must(t, err, h.Close(), f.Mkdir("e"), f.Rename("d/a", "e/a"))
	if got := states(f); got[0] != "in sync" || got[1] != "failed" {
		t.Errorf("drives are %v", got)
	}
	must(t, f.Close())
}

// TestMirrorKeepsAMajority: of three drives two may fail one after the other, and not both at once, since the third could
// then not know later whether the others went on without it.
func TestMirrorKeepsAMajority(t *testing.T) {
	d := newDisks(3)
	f := d.open(t)
	d.fail(0, syscall.EIO)
	write(t, f, "a", "1")
	d.fail(1, syscall.EIO)
	write(t, f, "b", "2")
	must(t, f.Close())
	d.heal()
	if _, err := Open(d.options(0, 1)); !errors.Is(err, ErrMajority) {
		t.Errorf("two drives that were put out open: %v", err)
	}
	f = d.open(t, 2)
	if text(f, "a") != "1" || text(f, "b") != "2" {
		t.Errorf("it has %v", tree(t, f, "."))
	}
	must(t, f.Close())

	d = newDisks(3)
	f = d.open(t)
	write(t, f, "a", "1")
	d.fail(0, syscall.EIO)
	d.fail(1, syscall.EIO)
	if _, err := f.Create("b"); !errors.Is(err, ErrMajority) {
		t.Errorf("two of three fail at once: %v", err)
	}
	if _, err := f.Create("c"); !errors.Is(err, ErrMajority) || f.Err() == nil {
		t.Errorf("and afterwards: %v", err)
	}
	if text(f, "a") != "1" {
		t.Error("what is there cannot be read")
	}
	must(t, f.Close())
	o := d.options(2)
	if _, err := Open(o); !errors.Is(err, ErrMajority) {
		t.Errorf("one of three opens: %v", err)
	}
	o.Force = true
	f, err := Open(o)
	must(t, err)
	write(t, f, "forced", "3")
	must(t, f.Close())
	d.heal()
	f = d.open(t) // those that it was done without return
	if got := states(f); got[2] != "in sync" || text(f, "forced") != "3" {
		t.Errorf("drives are %v, with %v", got, tree(t, f, "."))
	}
	run(t, f)
	must(t, f.Close())
	d.wantAlike(t)
}

// TestMirrorRecognises drives that were swapped, that are of another store, copies, damaged records, and such that are not empty.
func TestMirrorRecognises(t *testing.T) {
	d := newDisks(2)
	f := d.open(t)
	write(t, f, "a", "1")
	must(t, f.Close())
	f = d.open(t, 1, 0)
	if f.Status().InSync != 2 || text(f, "a") != "1" {
		t.Errorf("swapped: %+v", f.Status())
	}
	must(t, f.Close())

	twin := newDisks(2)
	twin.under[0], twin.under[1] = d.under[0], crashfs.New()
	rec, _, err := vfs.ReadFile(d.under[0], RecordName, 0)
	must(t, err, vfs.WriteFile(twin.under[1], RecordName, rec))
	if _, err := Open(twin.options()); !errors.Is(err, ErrMixed) {
		t.Errorf("a copy of a drive: %v", err)
	}

	other := newDisks(2)
	g := other.open(t)
	must(t, g.Close())
	other.under[0] = d.under[0]
	if _, err := Open(other.options()); !errors.Is(err, ErrMixed) {
		t.Errorf("of two stores: %v", err)
	}

	used := newDisks(2)
	must(t, used.under[1].Mkdir("log"))
	if _, err := Open(used.options()); !errors.Is(err, ErrFound) {
		t.Errorf("a second drive that is not empty: %v", err)
	}

	d3 := newDisks(3)
	f = d3.open(t)
	write(t, f, "a", "1")
	must(t, f.Close())
	h, err := d3.under[1].Open(RecordName)
	must(t, err)
	_, err = h.WriteAt([]byte("X"), 20)
	must(t, err)
	f = d3.open(t)
	if got := states(f); got[1] != "refused" || f.Status().InSync != 2 {
		t.Errorf("with a damaged record: %v", got)
	}
	must(t, f.Close())

	locked := newDisks(2)
	f = locked.open(t)
	if _, err := Open(locked.options()); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	must(t, f.Close())
}

// TestMirrorAdopts: a directory that was a store of its own gets a second drive.
func TestMirrorAdopts(t *testing.T) {
	d := newDisks(2)
	must(t, d.under[0].Mkdir("log"))
	write(t, d.under[0], "log/1", "bytes")
	f := d.open(t)
	if got := states(f); got[0] != "in sync" || got[1] != "waiting" || text(f, "log/1") != "bytes" {
		t.Errorf("drives are %v", got)
	}
	run(t, f)
	must(t, f.Close())
	d.wantAlike(t)
}

// TestMirrorReplacesADriveWhileWritesGoOn: a new drive gets everything, what is written meanwhile too: files that grow, are renamed,
// replaced and removed.
func TestMirrorReplacesADriveWhileWritesGoOn(t *testing.T) {
	d := newDisks(2)
	f := d.open(t)
	must(t, f.Mkdir("d"))
	for i := range 20 {
		write(t, f, fmt.Sprintf("d/%02d", i), strings.Repeat(fmt.Sprint(i), 3000))
	}
	growing, err := f.Create("growing")
	must(t, err)
	d.fail(1, syscall.EIO)
	must(t, growing.Sync())
	must(t, f.Close())
	d.under[1] = crashfs.New()
	d.heal()
	f = d.open(t)
	growing, err = f.Open("growing")
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	var at int64
	for i := 0; i < 200 || f.Status().InSync < 2; i++ {
		n, err := growing.WriteAt(bytes.Repeat([]byte{byte(i)}, 700), at)
		at += int64(n)
		name := fmt.Sprintf("new%d", i)
		must(t, err, growing.Sync(), vfs.WriteFile(f, name, []byte(name)), f.Rename(name, "d/"+name), f.SyncDir("d"))
		if i%3 == 0 {
			must(t, f.Remove("d/"+name), vfs.ReplaceFile(f, "replaced", []byte(name)))
		}
		if i > 20_000 {
			t.Fatalf("never in sync: %+v", f.Status())
		}
	}
	must(t, growing.Close())
	stop()
	must(t, <-ended, f.Close())
	d.wantAlike(t)
	f = d.open(t, 1, 0)
	if f.Status().InSync != 2 {
		t.Errorf("afterwards: %+v", f.Status())
	}
	must(t, f.Close())
}

// TestMirrorMends: a copy that cannot be read, or whose bytes are wrong, is served by the other drive and written again.
func TestMirrorMends(t *testing.T) {
	d := newDisks(2)
	f := d.open(t)
	write(t, f, "a", "good bytes")
	h, err := d.under[0].Open("a")
	must(t, err)
	_, err = h.WriteAt([]byte("bad!"), 0)
	must(t, err)
	x, err := f.Open("a")
	must(t, err)
	file := x.(*File)
	b := make([]byte, 10)
	for i := range file.Copies() {
		if _, err := file.ReadCopy(i, b, 0); err == nil && string(b) == "good bytes" {
			file.Mend(b, 0)
		}
	}
	if text(d.under[0], "a") != "good bytes" || f.Status().Mended != 1 || f.Status().InSync != 2 {
		t.Errorf("after mending: %q, %+v", text(d.under[0], "a"), f.Status())
	}
	must(t, d.under[0].Remove("a"))
	if text(f, "a") != "good bytes" {
		t.Error("a file that one drive lacks cannot be read")
	}
}

// TestMirrorWritesTakeNoMemory in the common case.
func TestMirrorWritesTakeNoMemory(t *testing.T) {
	f, err := Open(Options{Drives: []Drive{{"a", vfs.Dir(t.TempDir())}, {"b", vfs.Dir(t.TempDir())}}})
	must(t, err)
	h, err := f.Create("x")
	must(t, err)
	p := make([]byte, 256<<10)
	n := testing.AllocsPerRun(100, func() {
		_, err := h.WriteAt(p, 0)
		_, serr := h.WriteAt(p[:100], 0)
		if err != nil || serr != nil || h.Sync() != nil {
			t.Error(err, serr)
		}
	})
	if n >= 1 {
		t.Errorf("%v allocations for two writes and an fsync", n)
	}
	must(t, h.Close(), f.Close())
}

// TestMirrorFolderOfOneDrive: power failed while a folder of bodies was made, and one drive has it. A body goes into it on all.
func TestMirrorFolderOfOneDrive(t *testing.T) {
	d := newDisks(3)
	f := d.open(t)
	must(t, body.NewFiles(f, nil).Recover(), f.Close(), d.under[0].Mkdir(body.Dir+"/00"))
	f = d.open(t)
	s := body.NewFiles(f, nil)
	must(t, s.Recover())
	w, err := s.Create("00000000000000000000000000000001")
	must(t, err)
	_, err = w.Write([]byte("body"))
	must(t, err, w.Finish())
	if got := states(f); slices.ContainsFunc(got, func(s string) bool { return s != "in sync" }) {
		t.Errorf("drives are %v", got)
	}
	must(t, f.Close())
}
