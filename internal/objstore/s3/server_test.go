package s3

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
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

// The authorities of ca_file are those of the file by now: the certificate of a store can be
// renewed under another authority without a restart of what speaks to it.
func TestAuthoritiesAreReadAgain(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Etag", `"e"`)
		w.WriteHeader(http.StatusOK)
	})
	was, now := httptest.NewTLSServer(h), httptest.NewUnstartedServer(h)
	now.TLS = &tls.Config{Certificates: []tls.Certificate{otherCertificate(t)}}
	now.StartTLS()
	defer was.Close()
	defer now.Close()
	server := was
	file := filepath.Join(t.TempDir(), "ca.pem")
	write := func(s *httptest.Server) {
		t.Helper()
		b := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.TLS.Certificates[0].Certificate[0]})
		must(t, os.WriteFile(file, b, 0o600))
		tlsfile.Refresh()
	}
	write(was)
	cfg := testConfig(was.URL)
	cfg.CAFile = file
	s, err := New(t.Context(), cfg, Options{})
	must(t, err)
	defer s.Close()
	put := func() error {
		s.base.Host = strings.TrimPrefix(server.URL, "https://")
		s.Close() // a connection of its own for each
		_, err := s.Put(t.Context(), "k", nil, objstore.PutOptions{})
		return err
	}
	must(t, put())
	server = now
	if err := put(); err == nil {
		t.Fatal("a certificate of an unknown authority is taken")
	}
	write(now)
	must(t, put())
	must(t, os.WriteFile(file, []byte("half a certi"), 0o600))
	tlsfile.Refresh()
	must(t, put())
}

// otherCertificate is of 127.0.0.1, and its own authority.
func otherCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
