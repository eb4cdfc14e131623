package place_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place/placetest"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

// TestPlaces: directories, on the real file system and on the one of the power-loss tests, and
// buckets of a running store are places.
func TestPlaces(t *testing.T) {
	t.Run("dir", func(t *testing.T) {
		placetest.Run(t, func(t *testing.T) func() place.Place { return directories(t, vfs.Dir(t.TempDir())) })
	})
	t.Run("crashfs", func(t *testing.T) {
		placetest.Run(t, func(t *testing.T) func() place.Place { return directories(t, crashfs.New()) })
	})
	url := startStore(t)
	n := 0
	t.Run("bucket", func(t *testing.T) {
		placetest.Run(t, func(t *testing.T) func() place.Place {
			n++
			opt := place.BucketOptions{Endpoint: url, Bucket: "places", Prefix: fmt.Sprintf("p%d/", n), AccessKey: objectstoretest.Key, SecretKey: objectstoretest.Secret}
			return func() place.Place {
				b, err := place.OpenBucket("far", opt)
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
		})
	})
}

// directories opens a directory again and again; each time the process before has ended.
func directories(t *testing.T, fsys vfs.FS) func() place.Place {
	var last *place.Directory
	return func() place.Place {
		if last != nil {
			if err := last.Close(); err != nil {
				t.Fatal(err)
			}
		}
		d, err := place.OpenDirectory("near", fsys, nil)
		if err != nil {
			t.Fatal(err)
		}
		last = d
		return d
	}
}

// startStore runs an object store and gives its URL.
func startStore(t *testing.T) string {
	return "http://" + objectstoretest.Start(t, objectstoretest.Config(t, "places")).Addr()
}

// TestFailedFsyncPoisons: after a failed fsync nothing is written any more, and what is there is read.
func TestFailedFsyncPoisons(t *testing.T) {
	ctx := context.Background()
	for _, kind := range []errorfs.Kind{errorfs.Sync, errorfs.SyncDir} {
		broken := false
		d, err := place.OpenDirectory("near", errorfs.Wrap(crashfs.New(), func(o errorfs.Op) (f errorfs.Fault) {
			if broken && o.Kind == kind {
				f.Err = syscall.EIO
			}
			return f
		}), nil)
		if err != nil {
			t.Fatal(err)
		}
		put := func(name string) error { return placetest.Put(ctx, d, name, strings.NewReader("text")) }
		if err := errors.Join(d.Recover(ctx), put("ab.1")); err != nil {
			t.Fatal(err)
		}
		w, err := d.Create(ctx, "ab.3") // begun before
		if err != nil {
			t.Fatal(err)
		}
		broken = true
		if err := put("ab.2"); !errors.Is(err, place.ErrPoisoned) || !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v", kind, err)
		}
		broken = false
		for what, err := range map[string]error{"create": put("ab.4"), "finish": w.Finish(), "err": d.Err()} {
			if !errors.Is(err, place.ErrPoisoned) || !errors.Is(err, place.ErrOut) {
				t.Errorf("%s after a failed %s: %v", what, kind, err)
			}
		}
		if r, err := d.Open(ctx, "ab.1"); err != nil || r.Size() != 4 {
			t.Errorf("read after a failed %s: %v", kind, err)
		}
	}
}

// TestBucketsThatAreNotThere: a bucket, a store and a secret that are wrong make the place be out, and
// no file absent.
func TestBucketsThatAreNotThere(t *testing.T) {
	url := startStore(t)
	ctx := context.Background()
	for name, opt := range map[string]place.BucketOptions{
		"bucket": {Endpoint: url, Bucket: "another", AccessKey: objectstoretest.Key, SecretKey: objectstoretest.Secret},
		"secret": {Endpoint: url, Bucket: "places", AccessKey: objectstoretest.Key, SecretKey: "secret-of-other"},
		"store":  {Endpoint: "http://127.0.0.1:1", Bucket: "places", AccessKey: objectstoretest.Key, SecretKey: objectstoretest.Secret},
	} {
		b, err := place.OpenBucket("far", opt)
		if err != nil {
			t.Fatal(err)
		}
		_, ierr := b.Identity(ctx)
		_, oerr := b.Open(ctx, "ab.1")
		for what, err := range map[string]error{"identity": ierr, "open": oerr, "put": placetest.Put(ctx, b, "ab.1", strings.NewReader("x"))} {
			if !errors.Is(err, place.ErrOut) || errors.Is(err, place.ErrBlank) {
				t.Errorf("no such %s: %s: %v", name, what, err)
			}
		}
	}
	for _, bad := range []place.BucketOptions{{Endpoint: "nothing"}, {Endpoint: "ftp://x"}, {Endpoint: "http://x/y"}, {Endpoint: "http://x", Prefix: "a"}} {
		if _, err := place.OpenBucket("far", bad); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}
