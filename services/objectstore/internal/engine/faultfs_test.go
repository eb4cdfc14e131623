package engine

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

var errInjected = errors.New("injected")

// faultFS fails syncs and writes on request.
type faultFS struct {
	FS
	failSync, failWrite atomic.Bool
	syncs               atomic.Int64
}

type faultFile struct {
	File
	fs *faultFS
}

func (f *faultFS) Create(name string) (File, error) { return f.wrap(f.FS.Create(name)) }
func (f *faultFS) Open(name string) (File, error)   { return f.wrap(f.FS.Open(name)) }

func (f *faultFS) wrap(file File, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{file, f}, nil
}

func (f *faultFile) Sync() error {
	f.fs.syncs.Add(1)
	if f.fs.failSync.Load() {
		return errInjected
	}
	return f.File.Sync()
}

// WriteAt writes half and fails, as a full disk does.
func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	if f.fs.failWrite.Load() {
		n, _ := f.File.WriteAt(p[:len(p)/2], off)
		return n, errInjected
	}
	return f.File.WriteAt(p, off)
}

// testEngine is an open engine whose committer runs.
type testEngine struct {
	*Engine
	t    testing.TB
	done func()
}

func openTest(t testing.TB, opt Options) *testEngine {
	t.Helper()
	e, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	return runTest(t, e)
}

var epoch = time.Unix(1_700_000_000, 0)

func obj(key string) Object {
	return Object{Bucket: "bkt", Key: key, ETag: "etag-" + key, Modified: epoch}
}
