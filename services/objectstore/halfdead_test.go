package objectstore_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// TestPlaceThatHangs: a bucket takes requests and does not answer. Reads that drives of this machine can serve, deletes and
// overwrites do not wait for it; what it has of deleted objects goes when it answers again.
func TestPlaceThatHangs(t *testing.T) {
	other := start(t, testConfig(filepath.Join(t.TempDir(), "other")))
	to, err := url.Parse(other.url())
	if err != nil {
		t.Fatal(err)
	}
	var hangs atomic.Bool
	again := make(chan struct{})
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() {
			select {
			case <-again:
			case <-r.Context().Done():
				return
			}
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	cfg := withPlaces(t, testConfig(filepath.Join(t.TempDir(), "main")), 2, 1)
	cfg.Redundancy.Data, cfg.Redundancy.Parity, cfg.Redundancy.Threshold = 2, 1, 1<<20
	cfg.Places = append(cfg.Places, objectstore.Place{Name: "far", Endpoint: front.URL, Bucket: bucket, AccessKeyID: testKey, Secret: config.Secret(testSecret)})
	s := start(t, cfg)
	c := s.client()
	for _, k := range []string{"a", "b", "c"} {
		put(t, c, k, append(large(2), k...))
	}
	settled(t, s.AdminAddr(), 9)

	hangs.Store(true)
	if !bytes.Equal(get(t, c, "a"), append(large(2), 'a')) {
		t.Error("another body")
	}
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("b")}); err != nil {
		t.Errorf("delete: %v", err)
	}
	put(t, c, "c", []byte("small now"))
	put(t, c, "new", large(2))
	if !bytes.Equal(get(t, c, "new"), large(2)) {
		t.Error("another new body")
	}
	hangs.Store(false)
	close(again)
	settled(t, s.AdminAddr(), 6)
	out, err := other.client().ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket), Prefix: aws.String("files/")})
	if err != nil || len(out.Contents) != 2 {
		t.Errorf("%d files in the bucket, want 2: %v", len(out.Contents), err)
	}
}

// TestStartWithoutTheLedgerAndAPlace: without its ledger a store asks the places which policies their files are of. One that
// cannot be listed does not keep it from starting.
func TestStartWithoutTheLedgerAndAPlace(t *testing.T) {
	other := start(t, testConfig(filepath.Join(t.TempDir(), "other")))
	to, err := url.Parse(other.url())
	if err != nil {
		t.Fatal(err)
	}
	var refuses atomic.Bool
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuses.Load() && r.URL.Query().Has("list-type") {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	cfg := withPlaces(t, testConfig(filepath.Join(t.TempDir(), "main")), 2, 1)
	cfg.Redundancy.Data, cfg.Redundancy.Parity, cfg.Redundancy.Threshold = 2, 1, 1<<20
	cfg.Places = append(cfg.Places, objectstore.Place{Name: "far", Endpoint: front.URL, Bucket: bucket, AccessKeyID: testKey, Secret: config.Secret(testSecret)})
	s := start(t, cfg)
	put(t, s.client(), "a", large(2))
	settled(t, s.AdminAddr(), 3)
	s.stop()
	if err := os.RemoveAll(filepath.Join(cfg.Dir, "ledger")); err != nil {
		t.Fatal(err)
	}
	refuses.Store(true)
	s = start(t, cfg)
	if !bytes.Equal(get(t, s.client(), "a"), large(2)) {
		t.Error("another body")
	}
	put(t, s.client(), "b", large(2))
	refuses.Store(false)
	if st := settled(t, s.AdminAddr(), 6); st.Policy.Version < 3 {
		t.Errorf("policy %+v: the place that was not listed may have files of it", st.Policy)
	}
}
