package engine

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
)

var errInjected = errors.New("injected")

// faultFS fails syncs and writes on request.
type faultFS struct {
	vfs.FS
	failSync, failWrite atomic.Bool
	syncs               atomic.Int64
}

func newFaultFS(dir string) *faultFS {
	f := &faultFS{}
	f.FS = errorfs.Wrap(vfs.Dir(dir), func(op errorfs.Op) errorfs.Fault {
		switch {
		case op.Kind == errorfs.Sync:
			f.syncs.Add(1)
			if f.failSync.Load() {
				return errorfs.Fault{Err: errInjected}
			}
		case op.Kind == errorfs.Write && f.failWrite.Load(): // half of it, as on a full disk
			return errorfs.Fault{Err: errInjected, Written: op.Size / 2}
		}
		return errorfs.Fault{}
	})
	return f
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
