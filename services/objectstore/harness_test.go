package objectstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const (
	testKey    = "AKTESTACCESS"
	testSecret = "test-secret-0123456789"
	bucket     = "bucket-one"
)

func testConfig(dir string) objectstore.Config {
	c := objectstore.DefaultConfig()
	c.Dir, c.Listen, c.AdminListen = dir, "127.0.0.1:0", "127.0.0.1:0"
	c.Users = []objectstore.User{{Name: "tester", AccessKeyID: testKey, Secret: config.Secret(testSecret)}}
	c.Buckets = []string{bucket}
	return c
}

// server is a running service of this process.
type server struct {
	*objectstore.Service
	t    testing.TB
	tel  *telemetry.Telemetry
	end  context.CancelFunc
	done chan error
}

func start(t testing.TB, c objectstore.Config) *server {
	t.Helper()
	return startWith(t, c, objectstore.Deps{})
}

func startWith(t testing.TB, c objectstore.Config, d objectstore.Deps) *server {
	t.Helper()
	tel := telemetry.Discard()
	d.Telemetry = tel
	s, err := objectstore.New(c, d)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv := &server{Service: s, t: t, tel: tel, end: cancel, done: make(chan error, 1)}
	go func() { srv.done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-srv.done:
		cancel()
		t.Fatalf("the service ended at start: %v", err)
	}
	t.Cleanup(srv.stop)
	return srv
}

func (s *server) stop() {
	s.end()
	if err, ok := <-s.done; ok && err != nil {
		s.t.Errorf("run: %v", err)
	}
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

func (s *server) url() string { return "http://" + s.Addr() }

// client is the real SDK, without retries.
func (s *server) client(opts ...func(*s3.Options)) *s3.Client {
	return sdk(s.url(), testKey, testSecret, opts...)
}

func sdk(url, key, secret string, opts ...func(*s3.Options)) *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(url), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(key, secret, ""),
		Retryer:     aws.NopRetryer{},
		HTTPClient:  &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 128}},
	}, opts...)
}

func put(t testing.TB, c *s3.Client, key string, body []byte, opts ...func(*s3.PutObjectInput)) *s3.PutObjectOutput {
	t.Helper()
	in := &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(body)}
	for _, o := range opts {
		o(in)
	}
	out, err := c.PutObject(context.Background(), in)
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	return out
}

func get(t testing.TB, c *s3.Client, key string) []byte {
	t.Helper()
	out, err := c.GetObject(context.Background(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &key})
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	defer out.Body.Close()
	b, err := io.ReadAll(out.Body)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	return b
}

// code gives the S3 code of an error, and its status.
func code(err error) (string, int) {
	if err == nil {
		return "", 0
	}
	var api smithy.APIError
	var resp interface{ HTTPStatusCode() int }
	name, status := "?", 0
	if errors.As(err, &api) {
		name = api.ErrorCode()
	}
	if errors.As(err, &resp) {
		status = resp.HTTPStatusCode()
	}
	return name, status
}

func wantCode(t testing.TB, err error, name string, status int) {
	t.Helper()
	if n, s := code(err); n != name || s != status {
		t.Errorf("got %s %d (%v), want %s %d", n, s, err, name, status)
	}
}
