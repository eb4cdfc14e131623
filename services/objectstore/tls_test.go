package objectstore_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// writeCertificate makes a certificate of its own authority for 127.0.0.1, and gives the authority.
func writeCertificate(t *testing.T, dir string, serial int64) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}, &x509.Certificate{SerialNumber: big.NewInt(serial)}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{"crt": certificate, "key": pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return pool
}

func secureClient(pool *x509.CertPool, protos ...string) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, NextProtos: protos}, ForceAttemptHTTP2: true}}
}

func TestTLS(t *testing.T) {
	cfg, files := testConfig(t.TempDir()), t.TempDir()
	pool := writeCertificate(t, files, 1)
	cfg.TLS = objectstore.TLS{CertFile: filepath.Join(files, "crt"), KeyFile: filepath.Join(files, "key")}
	s := start(t, cfg)
	url := "https://" + s.Addr()
	over := func(c *http.Client) func(*s3.Options) { return func(o *s3.Options) { o.HTTPClient = c } }
	c := sdk(url, testKey, testSecret, over(secureClient(pool)))
	for key, size := range map[string]int{"small": 100, "large": 3 << 20} {
		body := bytes.Repeat([]byte("tls!"), size/4)
		put(t, c, key, body)
		if got := get(t, c, key); !bytes.Equal(got, body) {
			t.Errorf("%s: %d bytes came back", key, len(got))
		}
	}
	// The address of what parts have made is one that answers.
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("a b")})
	if err != nil {
		t.Fatal(err)
	}
	part, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: aws.String("a b"), UploadId: up.UploadId, PartNumber: aws.Int32(1), Body: strings.NewReader("x")})
	if err != nil {
		t.Fatal(err)
	}
	made, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("a b"), UploadId: up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{{ETag: part.ETag, PartNumber: aws.Int32(1)}}}})
	if err != nil || aws.ToString(made.Location) != url+"/"+bucket+"/a%20b" {
		t.Errorf("an object of parts: %+v %v", made, err)
	}
	// A policy sees that the request is secure, and a client of HTTP/2 is told HTTP/1.1.
	if err := setPolicy(t, c, `{"Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket-one/small","Condition":{"Bool":{"aws:SecureTransport":"true"},"NumericGreaterThanEquals":{"s3:TlsVersion":"1.2"}}}]}`); err != nil {
		t.Fatal(err)
	}
	resp, err := secureClient(pool, "h2", "http/1.1").Get(url + "/" + bucket + "/small")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 || resp.ProtoMajor != 1 || resp.TLS.NegotiatedProtocol != "http/1.1" {
		t.Errorf("%d %s %q", resp.StatusCode, resp.Proto, resp.TLS.NegotiatedProtocol)
	}
	if conn, err := tls.Dial("tcp", s.Addr(), &tls.Config{RootCAs: pool, NextProtos: []string{"h2"}}); err == nil {
		conn.Close()
		t.Error("a client that speaks only HTTP/2 was taken")
	}
	if conn, err := tls.Dial("tcp", s.Addr(), &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS11}); err == nil {
		conn.Close()
		t.Error("TLS 1.1 was taken")
	}
	if resp, err := http.Get("http://" + s.Addr() + "/" + bucket + "/small"); err != nil || resp.StatusCode != 400 {
		t.Errorf("a request in the clear: %v %v", resp, err)
	} else if b, _ := io.ReadAll(resp.Body); !strings.Contains(string(b), "https") {
		t.Errorf("a request in the clear: %s", b)
	}
	// A renewed certificate is served to new connections; those that are open go on.
	renewed := writeCertificate(t, files, 2)
	tlsfile.Refresh()
	again := sdk(url, testKey, testSecret, over(secureClient(renewed)))
	if _, err := again.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("small")}); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
	get(t, c, "small")
	// Half a certificate keeps the one before.
	if err := os.WriteFile(filepath.Join(files, "crt"), []byte("-----BEGIN"), 0o600); err != nil {
		t.Fatal(err)
	}
	tlsfile.Refresh()
	again = sdk(url, testKey, testSecret, over(secureClient(renewed)))
	if _, err := again.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("small")}); err != nil {
		t.Errorf("with half a certificate: %v", err)
	}
}

func TestTLSSettings(t *testing.T) {
	files := t.TempDir()
	writeCertificate(t, files, 1)
	pair := objectstore.TLS{CertFile: filepath.Join(files, "crt"), KeyFile: filepath.Join(files, "key")}
	for name, c := range map[string]struct {
		change func(*objectstore.Config)
		ok     bool
	}{
		"in the clear, off loopback": {func(c *objectstore.Config) { c.Listen = "0.0.0.0:0" }, false},
		"TLS, off loopback":          {func(c *objectstore.Config) { c.Listen, c.TLS = "0.0.0.0:0", pair }, true},
		"admin paths, off loopback":  {func(c *objectstore.Config) { c.AdminListen, c.TLS = "0.0.0.0:0", pair }, false},
		"half a pair":                {func(c *objectstore.Config) { c.TLS.CertFile = pair.CertFile }, false},
	} {
		cfg := testConfig(t.TempDir())
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (objectstore.TLS{CertFile: filepath.Join(files, "none"), KeyFile: pair.KeyFile}).Check(); err == nil {
		t.Error("a file that is not there was taken")
	}
}
