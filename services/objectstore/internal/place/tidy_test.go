package place_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/errorfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

// TestTidyDirectory: an unfinished file that its writer could not remove goes later, in the same process.
func TestTidyDirectory(t *testing.T) {
	ctx := context.Background()
	fsys, broken := crashfs.New(), false
	d, err := place.OpenDirectory("near", errorfs.Wrap(fsys, func(o errorfs.Op) (f errorfs.Fault) {
		if broken && o.Kind == errorfs.Remove {
			f.Err = syscall.EIO
		}
		return f
	}), nil)
	if err == nil {
		err = d.Recover(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	w, err := d.Create(ctx, "ab.1")
	if err != nil {
		t.Fatal(err)
	}
	broken = true
	w.Discard()
	if err := d.Tidy(ctx); !errors.Is(err, syscall.EIO) {
		t.Errorf("a drive that removes nothing: %v", err)
	}
	broken = false
	if err := d.Tidy(ctx); err != nil {
		t.Error(err)
	}
	if left, err := vfs.Names(fsys, "tmp"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// abortless is a transport of which the requests that end an upload can fail. It counts those that it passes on.
type abortless struct {
	broken atomic.Bool
	passed atomic.Int64
}

func (a *abortless) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodDelete && strings.Contains(r.URL.RawQuery, "uploadId=") {
		if a.broken.Load() {
			return nil, errors.New("the network is down")
		}
		a.passed.Add(1)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestTidyBucket: an upload that its writer could not end is ended later, in the same process, once.
func TestTidyBucket(t *testing.T) {
	ctx := context.Background()
	net := &abortless{}
	opt := place.BucketOptions{Endpoint: startStore(t), Bucket: "places", Prefix: "p/", AccessKey: objectstoretest.Key, SecretKey: objectstoretest.Secret, Client: &http.Client{Transport: net}}
	b, err := place.OpenBucket("far", opt)
	if err != nil {
		t.Fatal(err)
	}
	lost, err := b.Create(ctx, "ab.1")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := b.Create(ctx, "ab.2")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []place.Writer{lost, kept} {
		if _, err := w.Write(make([]byte, 9<<20)); err != nil {
			t.Fatal(err)
		}
	}
	net.broken.Store(true)
	lost.Discard()
	net.broken.Store(false)
	for range 2 {
		if err := b.Tidy(ctx); err != nil {
			t.Error(err)
		}
		if n := net.passed.Load(); n != 1 {
			t.Errorf("%d uploads are ended, want 1", n)
		}
	}
	if err := kept.Finish(); err != nil {
		t.Errorf("a file that was being written: %v", err)
	}
}
