package spread_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/vfstest"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/erasure"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/spread"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

// farStore runs another object store behind a switch: while it is off, nobody reaches it.
func farStore(t *testing.T) (endpoint string, on *atomic.Bool) {
	s := objectstoretest.Start(t, objectstoretest.Config(t, "far"))
	on = &atomic.Bool{}
	on.Store(true)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: s.Addr()})
		r.Out.Host = r.In.Host // it is signed
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !on.Load() {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	return front.URL, on
}

// TestBucketsAsPlaces: shards on buckets of another store are read, mended and removed like those on
// drives; while the other store does not answer, m shards may be there.
func TestBucketsAsPlaces(t *testing.T) {
	endpoint, on := farStore(t)
	ctx := context.Background()
	dir := vfs.Dir(t.TempDir())
	var slots []spread.Slot
	for i := range 2 {
		name := fmt.Sprint("near", i)
		if err := dir.Mkdir(name); err != nil {
			t.Fatal(err)
		}
		slots = append(slots, spread.Slot{Name: name, Local: true, Open: func(context.Context) (place.Place, error) {
			return place.OpenDirectory(name, vfstest.Sub(dir, name), nil)
		}})
	}
	far := fmt.Sprint("far", 0)
	slots = append(slots, spread.Slot{Name: far, Open: func(context.Context) (place.Place, error) {
		return place.OpenBucket(far, place.BucketOptions{Endpoint: endpoint, Bucket: "far", Prefix: "p/", AccessKey: objectstoretest.Key, SecretKey: objectstoretest.Secret})
	}})
	s, err := spread.Open(ctx, spread.Options{FS: dir, Slots: slots, AckCopies: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Recover(); err != nil {
		t.Fatal(err)
	}
	id, b := "ab000000000000000000000000000001", bytes.Repeat([]byte("some bytes of a body "), 1<<20/21*3)
	w, err := s.Create(id)
	if err == nil {
		_, err = w.Write(b)
	}
	if err = errors.Join(err, w.Finish()); err != nil {
		t.Fatal(err)
	}
	c := spread.Coding{Policy: 1, Params: erasure.Params{K: 2, M: 1, MinChunk: 1, MaxChunk: 1 << 20}}
	placed, err := s.Encode(ctx, id, c, []string{far, "near0", "near1"}) // a data shard is far away
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range placed {
		if _, err := s.Verify(ctx, p.Located); err != nil || p.Err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, n := range []string{"near0", "near1"} {
		if err := s.RemoveFile(ctx, spread.Located{Place: n, Fragment: erasure.CopyOf(id)}); err != nil {
			t.Error(err)
		}
	}
	read := func(r io.ReaderAt) error {
		got, err := io.ReadAll(io.NewSectionReader(r, 0, int64(len(b))))
		if err == nil && !bytes.Equal(got, b) {
			err = errors.New("other bytes")
		}
		return err
	}
	r, err := s.OpenBody(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := read(r); err != nil {
		t.Error(err)
	}
	// The far store goes away while the body is open.
	on.Store(false)
	if err := read(r); err != nil {
		t.Errorf("without the far store: %v", err)
	}
	s.Retry(ctx)
	if r2, err := s.OpenBody(ctx, id); err != nil {
		t.Errorf("opened without the far store: %v", err)
	} else if err := errors.Join(read(r2), r2.Close()); err != nil {
		t.Error(err)
	}
	if _, err := s.OpenBody(ctx, "cd000000000000000000000000000002"); !errors.Is(err, body.ErrUnavailable) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a body that may be on the far store: %v", err)
	}
	on.Store(true)
	s.Retry(ctx)
	if err := s.AllThere(); err != nil {
		t.Error(err)
	}
	if err := s.RemoveFile(ctx, placed[0].Located); err != nil {
		t.Error(err)
	}
	if p, err := s.Heal(ctx, placed[0].Located, c); err != nil || p.Digest != placed[0].Digest {
		t.Errorf("%+v, %v", p, err)
	}
	// Removed while it is read: the objects go when the reader ends.
	if err := s.Remove(id); err != nil {
		t.Error(err)
	}
	if err := read(r); err != nil {
		t.Errorf("removed while it is read: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if found, err := s.Find(ctx, id); err != nil || len(found) > 0 {
		t.Errorf("left: %v, %v", found, err)
	}
}
