package s3

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// open gives a store whose service is h.
func open(t testing.TB, h http.HandlerFunc, change ...func(*Config)) *Store {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	cfg := testConfig(srv.URL)
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func testConfig(endpoint string) Config {
	cfg := DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.PathStyle = endpoint, "bucket", true
	cfg.AccessKeyID, cfg.SecretAccessKey = "key", "secret"
	return cfg
}

// says is a handler that answers with an S3 error.
func says(status int, code string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if code != "" {
			fmt.Fprintf(w, `<?xml version="1.0"?><Error><Code>%s</Code><Message>m</Message><RequestId>r</RequestId></Error>`, code)
		}
	}
}

// raw is a handler that answers with these bytes and cuts the connection.
func raw(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		io.WriteString(c, answer)
		c.Close()
	}
}

// hangs is a handler that never answers.
func hangs(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// impatient is a client of servers that hang.
func impatient(s objstore.Store) objstore.Store { return objstore.Deadline(s, 50*time.Millisecond) }

// ops are all operations by name.
var ops = map[string]func(context.Context, objstore.Store) error{
	"create": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Create(ctx, "k", []byte("body"), objstore.PutOptions{})
		return err
	},
	"replace": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Replace(ctx, "k", []byte("body"), `"e"`, objstore.PutOptions{})
		return err
	},
	"put": func(ctx context.Context, s objstore.Store) error {
		_, err := s.Put(ctx, "k", []byte("body"), objstore.PutOptions{})
		return err
	},
	"delete": func(ctx context.Context, s objstore.Store) error { return s.Delete(ctx, "k") },
	"get": func(ctx context.Context, s objstore.Store) error {
		_, _, err := s.Get(ctx, "k", objstore.GetOptions{})
		return err
	},
	"head": func(ctx context.Context, s objstore.Store) error { _, err := s.Head(ctx, "k"); return err },
	"list": func(ctx context.Context, s objstore.Store) error {
		_, err := s.List(ctx, objstore.ListOptions{})
		return err
	},
}
