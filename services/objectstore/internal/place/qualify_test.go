package place_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/place"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

// TestUnfitStores: a store that takes conditions and ignores them, or lists and cuts in its own way, is refused when the place is
// opened, with what it got wrong; one that does not answer is out and not unfit.
func TestUnfitStores(t *testing.T) {
	good := startStore(t)
	for name, c := range map[string]struct {
		spoil   func(r *http.Request) (status int, body string) // 0: pass on
		promise string
	}{
		"creates": {func(r *http.Request) (int, string) {
			return ok(r.Method == http.MethodPut && !r.URL.Query().Has("partNumber"))
		}, "was replaced"},
		"no condition": {func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut && r.Header.Get("If-None-Match") != "" {
				return http.StatusNotImplemented, "<Error><Code>NotImplemented</Code></Error>"
			}
			return 0, ""
		}, "does not create"},
		"parts": {func(r *http.Request) (int, string) {
			s, _ := ok(r.Method == http.MethodPost && r.URL.Query().Has("uploadId"))
			return s, "<CompleteMultipartUploadResult/>"
		}, "parts replaced"},
		"ranges": {func(r *http.Request) (int, string) {
			s, _ := ok(r.Method == http.MethodGet && r.Header.Get("Range") != "" && strings.Contains(r.URL.Path, "probe/"))
			return s, "all of it"
		}, ""}, // out, and says so in its own words
		"lists": {func(r *http.Request) (int, string) {
			s, _ := ok(r.URL.Query().Has("start-after"))
			return s, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
		}, "a listing"},
		"away": {func(r *http.Request) (int, string) {
			if r.Method == http.MethodPut {
				panic(http.ErrAbortHandler)
			}
			return 0, ""
		}, ""},
		"good": {func(*http.Request) (int, string) { return 0, "" }, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			to, err := url.Parse(good)
			if err != nil {
				t.Fatal(err)
			}
			proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(to)
				r.Out.Host = r.In.Host // it is signed
			}}
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if status, body := c.spoil(r); status != 0 {
					w.WriteHeader(status)
					_, _ = w.Write([]byte(body))
					return
				}
				proxy.ServeHTTP(w, r)
			}))
			defer front.Close()
			b, err := place.OpenBucket("far", place.BucketOptions{Endpoint: front.URL, Bucket: "places", Prefix: "unfit/" + strings.ReplaceAll(name, " ", "-") + "/", AccessKey: objectstoretest.Key, SecretKey: objectstoretest.Secret})
			if err != nil {
				t.Fatal(err)
			}
			err = b.Recover(t.Context())
			var unfit *place.UnfitError
			switch {
			case c.promise == "-":
				if err != nil {
					t.Error(err)
				}
			case !errors.Is(err, place.ErrOut):
				t.Errorf("it is used: %v", err)
			case c.promise == "":
				if errors.Is(err, place.ErrUnfit) {
					t.Error(err)
				}
			case !errors.As(err, &unfit) || !errors.Is(err, place.ErrUnfit) || !strings.Contains(unfit.Promise, c.promise):
				t.Error(err)
			}
		})
	}
}

// TestProbesAreForgotten: what a process left that was killed while it tried a store goes when the place is opened again.
func TestProbesAreForgotten(t *testing.T) {
	endpoint := startStore(t)
	at := func(prefix string) *place.Bucket {
		b, err := place.OpenBucket("far", place.BucketOptions{Endpoint: endpoint, Bucket: "places", Prefix: prefix, AccessKey: objectstoretest.Key, SecretKey: objectstoretest.Secret})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	left, id := at("killed/probe/"), place.Identity{Store: place.NewID(), Place: place.NewID(), Name: "far"}
	if err := left.Claim(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := at("killed/").Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := left.Identity(t.Context()); !errors.Is(err, place.ErrBlank) {
		t.Errorf("%+v, %v", got, err)
	}
}

func ok(is bool) (int, string) {
	if is {
		return http.StatusOK, ""
	}
	return 0, ""
}
