package engine

import (
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
)

// skip makes calls of one class do nothing.
func skip(kind crashfs.Kind, prefix string) func(crashfs.Op) bool {
	return func(o crashfs.Op) bool { return o.Kind == kind && strings.HasPrefix(o.Path, prefix) }
}

// TestStorePowerLossMutants: the matrix must fail when a step of the write order is left out.
func TestStorePowerLossMutants(t *testing.T) {
	defer collectLess()()
	for _, c := range []struct {
		name string
		lie  func(crashfs.Op) bool
		void bool // checksums
		from uint64
	}{
		{"no fsync of segments", skip(crashfs.Sync, logDir+"/"), false, 0},
		{"no fsync of the log's directory", skip(crashfs.SyncDir, logDir), false, 0},
		{"no fsync of body files", skip(crashfs.Sync, tmpDir+"/"), false, 0},
		{"no fsync of a folder of body files", skip(crashfs.SyncDir, body.Dir+"/"), false, 0},
		{"no fsync of the directory of body files", func(o crashfs.Op) bool { return o.Kind == crashfs.SyncDir && o.Path == body.Dir }, false, 0},
		{"no fsync of the store's directory", func(o crashfs.Op) bool {
			// The index syncs it too, above its own directory.
			return o.Kind == crashfs.SyncDir && (o.Path == "." || o.Path == "/")
		}, false, 0},
		{"a torn tail is not cut off", skip(crashfs.Truncate, logDir+"/"), false, 11},
		{"no checksums", nil, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.void {
				good := castagnoli
				castagnoli = new(crc32.Table)
				defer func() { castagnoli = good }()
			}
			m := &matrix{}
			for seed := max(1, c.from); seed <= c.from+6; seed++ {
				crashSeed(t, m, c.lie, seed, 20, 6)
				if m.failed() {
					t.Logf("caught by seed %d after %d states: %.200s", seed, m.count(), m.failures[0])
					return
				}
			}
			t.Errorf("not caught in %d states", m.count())
		})
	}
}

// TestStoreIndexDamaged: the index is a cache of the log. A flipped bit in any of its
// files, found when the store is opened, costs a rebuild and nothing else.
func TestStoreIndexDamaged(t *testing.T) {
	defer collectLess()()
	f := crashfs.New()
	s, err := openSession(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { s.e.abandon() }()
	errs := s.together(bucketCall())
	for i, k := range crashKeys {
		errs = append(errs, s.together(putCall(k, pattern(500*i, 1), k, Cond{}))...)
		errs = append(errs, s.together(flushCall())...)
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	w := f.Walk()
	for w.Step() {
	}
	names, err := vfs.Names(w.Crash(crashfs.Dropped, 1), "index")
	if err != nil || len(names) < 5 {
		t.Fatalf("%d files of the index, %v", len(names), err)
	}
	for _, name := range names {
		d := w.Crash(crashfs.Dropped, 1)
		x, err := d.Open("index/" + name)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := x.Size()
		for at := int64(0); at < size; at += 61 {
			d := w.Crash(crashfs.Dropped, 1)
			if x, err = d.Open("index/" + name); err != nil {
				t.Fatal(err)
			}
			var b [1]byte
			_, _ = x.ReadAt(b[:], at)
			b[0] ^= 0x10
			_, _ = x.WriteAt(b[:], at)
			last := len(s.worlds) - 1
			_, e, err := check(d, s.worlds, last, last)
			if err != nil {
				t.Errorf("bit flipped in %s at byte %d: %v", name, at, err)
				continue
			}
			e.abandon()
		}
	}
}
