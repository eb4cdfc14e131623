package engine

import (
	"context"
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/mirror"
)

// files gives the names of all files of the store on a disk but the index.
func storeFiles(t *testing.T, f *crashfs.FS, dir string) (names []string) {
	t.Helper()
	list, err := f.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		switch name := dir + "/" + e.Name; {
		case e.Type.IsDir():
			names = append(names, storeFiles(t, f, name)...)
		default:
			names = append(names, name)
		}
	}
	return names
}

// flipOn changes one bit of a file.
func flipOn(t *testing.T, f *crashfs.FS, name string, at int64) {
	t.Helper()
	h, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	_, rerr := h.ReadAt(b, at)
	b[0] ^= 4
	_, werr := h.WriteAt(b, at)
	if err := errors.Join(rerr, werr); err != nil {
		t.Fatal(err)
	}
}

// rotten is a store on two disks with several segments, bodies in files, and footers.
func rotten(t *testing.T) (*rack, []world) {
	t.Helper()
	r := newRack(2)
	e, err := r.open(all)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{e: e, worlds: []world{nil}, count: r.len}
	errs := s.together(bucketCall())
	for i, k := range append(crashKeys, crashKeys...) {
		i %= len(crashKeys)
		if i > 8 {
			i *= 4
		}
		errs = append(errs, s.together(putCall(k, pattern(250*i+1, byte(i)), k, Cond{}))...)
	}
	errs = append(errs, s.together(sealCall())...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	go func() { _ = e.Run(canceled()) }()
	if err := errors.Join(e.Close(), e.fs.(*mirror.FS).Close()); err != nil {
		t.Fatal(err)
	}
	return r, s.worlds
}

func canceled() context.Context {
	ctx, stop := context.WithCancel(context.Background())
	stop()
	return ctx
}

// copyOf gives the disks as they are.
func (r *rack) copyOf() *rack {
	out := &rack{}
	for _, w := range r.walk() {
		for w.Step() {
		}
		out.add(w.Crash(crashfs.Kept, 1), nil)
	}
	return out
}

// TestMirrorBitRot: a changed bit anywhere on one drive is served by the other one and put right, with the store closed
// and opened again, with the index and without; a different place on each drive is, too.
func TestMirrorBitRot(t *testing.T) {
	whole, worlds := rotten(t)
	last := len(worlds) - 1
	mended := int64(0)
	for _, dir := range []string{"log", "blobs", "footers"} {
		for _, name := range storeFiles(t, whole.disks[0], dir) {
			st, err := whole.disks[0].Stat(name)
			if err != nil {
				t.Fatal(err)
			}
			for at := int64(0); at < st.Size; at += 97 {
				r := whole.copyOf()
				disk := int(at/97) % 2
				flipOn(t, r.disks[disk], name, at)
				if dir == "log" { // of a body, both would be in its only block
					flipOn(t, r.disks[1-disk], name, (at+st.Size/2)%st.Size)
				}
				if at%2 == 0 {
					if err := r.disks[0].RemoveAll("index"); err != nil {
						t.Fatal(err)
					}
				}
				_, e, err := r.check(worlds, last, last, all)
				if err != nil {
					t.Fatalf("%s at byte %d of disk %d: %v", name, at, disk, err)
				}
				v, err := e.Verify(context.Background())
				if err != nil || len(v.Lost) > 0 || dir != "footers" && len(v.Damages) > 0 {
					t.Fatalf("%s at byte %d of disk %d: %v, %+v", name, at, disk, err, v)
				}
				scrubbed, err := e.Scrub(context.Background(), func(int64) {})
				if err != nil || scrubbed.Damaged > 0 {
					t.Fatalf("%s at byte %d of disk %d: scrub: %v, %+v", name, at, disk, err, scrubbed)
				}
				mended += e.fs.(*mirror.FS).Status().Mended
				closeMirror(e)
				if dir == "footers" {
					continue
				}
				// All of it was read, and is right on both now.
				for lost := range 2 {
					if a, b := fileText(t, r.disks[lost], name), fileText(t, whole.disks[lost], name); a != b {
						t.Fatalf("%s at byte %d of disk %d: disk %d was not mended", name, at, disk, lost)
					}
				}
			}
		}
	}
	if mended == 0 {
		t.Error("nothing was mended")
	}
}

// TestScrubNotesDamage: what no copy has whole is among the damages, with the object's name: a body in a file, and the
// record of a version.
func TestScrubNotesDamage(t *testing.T) {
	ctx := context.Background()
	r := newRack(2)
	e, err := r.open(all)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{e: e, worlds: []world{nil}, count: r.len}
	errs := s.together(bucketCall())
	errs = append(errs, s.together(putCall("file", pattern(5000, 1), "f", Cond{}))...)
	errs = append(errs, s.together(versioningCall(Enabled))...)
	errs = append(errs, s.together(putCall("k", pattern(500, 1), "v", Cond{}))...)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	version, err := e.Stat("bkt", "k")
	if err != nil {
		t.Fatal(err)
	}
	x, err := e.idx.record("bkt", recordKey("k", version.Version))
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.disks {
		flipOn(t, r.disks[i], segName(x.pos.seg), x.pos.off+int64(x.headLen+7*i))
		for _, name := range storeFiles(t, r.disks[i], "blobs") {
			flipOn(t, r.disks[i], name, int64(100*i))
		}
	}
	out, err := e.Scrub(ctx, func(int64) {})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, d := range e.Damages() {
		found[d.Key] = d.Version
	}
	if v, ok := found["k"]; !ok || v != version.Version {
		t.Errorf("damages %v; want version %s of k", e.Damages(), version.Version)
	}
	if _, ok := found["file"]; !ok || out.Damaged != 2 || len(found) != 2 {
		t.Errorf("damages %v, %d counted; want those of file and k", e.Damages(), out.Damaged)
	}
	closeMirror(e)
}

func fileText(t *testing.T, f *crashfs.FS, name string) string {
	t.Helper()
	h, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	n, _ := h.Size()
	b := make([]byte, n)
	_, _ = h.ReadAt(b, 0)
	return string(b)
}
