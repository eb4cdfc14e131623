package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
)

// tinyOptions make a few short objects use every kind of file: several segments, footers, bodies in files.
func tinyOptions(f *crashfs.FS) Options {
	o := crashOptions(f)
	o.SegmentBytes, o.InlineBytes = 600, 90
	return o
}

// tinyHistory is a store of few bytes with every kind of record.
func tinyHistory(t *testing.T) *session {
	t.Helper()
	f := crashfs.New()
	e, err := Open(tinyOptions(f))
	if err != nil {
		t.Fatal(err)
	}
	s := &session{fs: f, e: e, worlds: []world{nil}}
	must := func(calls ...call) {
		t.Helper()
		if err := errors.Join(s.together(calls...)...); err != nil {
			t.Fatal(err)
		}
	}
	must(bucketCall())
	must(policyCall("p"))
	must(putCall("k/00", pattern(40, 1), "a", Cond{}), putCall("k/01", pattern(70, 2), "b", Cond{}))
	must(putCall("k/02", pattern(200, 3), "c", Cond{})) // in a file
	must(tagCall("k/01", "x"))
	must(putCall("k/03", nil, "d", Cond{}))
	must(putCall("k/00", pattern(30, 4), "e", Cond{}))
	must(deleteCall("k/03"))
	must(sealCall())
	must(flushCall())
	must(putCall("k/04", pattern(20, 5), "f", Cond{Absent: true}))
	return s
}

// allFiles gives the length of every file of a disk.
func allFiles(t *testing.T, f *crashfs.FS, dir string, into map[string]int64) map[string]int64 {
	t.Helper()
	list, err := f.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		name := path.Join(dir, x.Name)
		if x.Type.IsDir() {
			allFiles(t, f, name, into)
			continue
		}
		st, err := f.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		into[name] = st.Size
	}
	return into
}

// flip is one changed byte of one file.
type flip struct {
	file string
	at   int64
	by   byte
}

// harmless are bytes that no object depends on: the mark of what was acknowledged, the index, which is built again from the
// log when it is damaged, and what the header of a segment has behind its checksum.
func (x flip) harmless() bool {
	return x.file == markName || strings.HasPrefix(x.file, "index/") || strings.HasPrefix(x.file, logDir+"/") && x.at >= 36 && x.at < segHeaderSize
}

// tryFlip changes the byte and wants that every read gives the right bytes or says that it cannot, and that a check of
// everything finds the damage or corrects it.
func tryFlip(t *testing.T, disk *crashfs.FS, want world, opt func(*crashfs.FS) Options, x flip) error {
	f := disk.Restart()
	if x.at%4 == 0 && !x.harmless() {
		if err := tryLiveFlip(t, disk.Restart(), want, opt, x); err != nil {
			return fmt.Errorf("of an open store: %w", err)
		}
	}
	flipByte(t, f, x.file, x.at, x.by)
	found, err := Check(context.Background(), opt(f))
	if err != nil {
		return fmt.Errorf("the check: %w", err)
	}
	e, err := Open(opt(f))
	if err != nil {
		return fmt.Errorf("does not start: %w", err)
	}
	defer func() { e.abandon() }()
	if _, err := e.Bucket("bkt"); err != nil && e.Uncertain() == nil {
		return fmt.Errorf("the bucket is gone: %w", err)
	} else if err != nil {
		return nil
	}
	failed, err := survey(e, want)
	if err != nil {
		return err
	}
	reported := len(found.Damages) > 0 || len(found.Lost) > 0 || found.Uncertain
	if len(failed) > 0 && !reported {
		return fmt.Errorf("%v cannot be read, and the check found nothing", failed)
	}
	if !reported && !x.harmless() {
		return errors.New("the check found nothing")
	}
	return nil
}

// tryLiveFlip changes the byte below an open store.
func tryLiveFlip(t *testing.T, f *crashfs.FS, want world, opt func(*crashfs.FS) Options, x flip) error {
	e, err := Open(opt(f))
	if err != nil {
		return err
	}
	defer func() { e.abandon() }()
	flipByte(t, f, x.file, x.at, x.by)
	_, err = survey(e, want)
	return err
}

// TestEveryFlippedByte: a changed byte anywhere in the directory of a tiny store, in each of its files, and at random
// places of a larger one.
func TestEveryFlippedByte(t *testing.T) {
	defer collectLess()()
	rng := rand.New(rand.NewPCG(5, 5))
	var failures, done atomic.Int64
	play := func(disk *crashfs.FS, want world, opt func(*crashfs.FS) Options, flips []flip) {
		pool := newWorkers(runtime.GOMAXPROCS(0))
		for _, x := range flips {
			pool.jobs <- func() {
				if failures.Load() > 20 {
					return
				}
				if err := tryFlip(t, disk, want, opt, x); err != nil {
					failures.Add(1)
					t.Errorf("byte %d of %s changed by %#x: %v", x.at, x.file, x.by, err)
				}
				done.Add(1)
			}
		}
		pool.wait()
	}
	tiny := func() {
		s := tinyHistory(t)
		defer func() { s.e.abandon() }()
		disk := s.disk()
		var flips []flip
		kinds := map[string]bool{}
		for file, size := range allFiles(t, disk, ".", map[string]int64{}) {
			kinds[path.Dir(file)] = true
			step := int64(1)
			if strings.HasPrefix(file, "index/") {
				step = 32 // TestStoreIndexDamaged has them
			}
			for at := int64(0); at < size; at += step {
				flips = append(flips, flip{file, at, 1 << rng.IntN(8)})
			}
		}
		play(disk, s.now(), tinyOptions, flips)
		t.Logf("%d changed bytes of %d folders of a tiny store", done.Load(), len(kinds))
	}
	tiny()
	crashKeyring.Store(testKeys(t, "one", "two")) // and with its bodies sealed; the check has the keys and needs none
	tiny()
	crashKeyring.Store(nil)

	samples := 500
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		samples = 50_000
	}
	large := damageHistory(t, true, true)
	defer func() { large.e.abandon() }()
	disk := large.disk()
	sizes := allFiles(t, disk, ".", map[string]int64{})
	var flips []flip
	for file, size := range sizes {
		for range samples / len(sizes) {
			if size > 0 {
				flips = append(flips, flip{file, rng.Int64N(size), byte(1 + rng.IntN(255))})
			}
		}
	}
	play(disk, large.now(), crashOptions, flips)
	t.Logf("%d changed bytes in all", done.Load())
}
