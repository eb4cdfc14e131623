package objectstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// flipIn flips a bit in the first file of a pattern that holds text, at the text.
func flipIn(t *testing.T, pattern, text string) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s, %v", pattern, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if i := strings.Index(string(b), text); i >= 0 {
			b[i] ^= 4
			if err := os.WriteFile(file, b, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%q is in no file of %s", text, pattern)
}

func adminGet(t *testing.T, s *server, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + s.AdminAddr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestDamagedObjectAsClientsSeeIt: GET, HEAD and LIST say that an object is damaged; a
// create doesn't win over it, a delete does, and the others are served.
func TestDamagedObjectAsClientsSeeIt(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	put(t, c, "good", []byte("the good body"))
	put(t, c, "bad", []byte("the bad body"))
	flipIn(t, filepath.Join(cfg.Dir, "log", "*.seg"), "the bad body")
	_, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("bad")})
	wantCode(t, err, "ObjectDamaged", http.StatusInternalServerError)
	resp, err := http.DefaultClient.Do(newSigner().request("HEAD", s.url()+"/"+bucket+"/bad", nil))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 500 || !strings.Contains(resp.Header.Get("X-Lightmetrics-Damaged"), "body checksum mismatch") {
		t.Errorf("HEAD: %s %v", resp.Status, resp.Header)
	}
	resp, err = http.DefaultClient.Do(newSigner().request("GET", s.url()+"/"+bucket+"?list-type=2", nil))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if resp.Header.Get("X-Lightmetrics-Damaged") != "1" || strings.Count(string(b), "<Damaged>true</Damaged>") != 1 {
		t.Errorf("LIST: %v %s", resp.Header, b)
	}
	if page, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)}); err != nil || len(page.Contents) != 2 {
		t.Errorf("the SDK reads the listing: %v", err)
	}
	code, body := adminGet(t, s, "/damage")
	var shown struct {
		Uncertain bool
		Damages   []struct{ File, Key, Reason string }
	}
	if err := json.Unmarshal([]byte(body), &shown); err != nil || code != 200 || len(shown.Damages) != 1 || shown.Damages[0].Key != "bad" || shown.Uncertain {
		t.Errorf("/damage: %d %s", code, body)
	}
	if code, body := adminGet(t, s, "/-/ready"); code != 200 {
		t.Errorf("one damaged object: not ready: %s", body)
	}
	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("bad"), Body: strings.NewReader("x"), IfNoneMatch: aws.String("*")})
	wantCode(t, err, "PreconditionFailed", http.StatusPreconditionFailed)
	if string(get(t, c, "good")) != "the good body" {
		t.Error("the good object is another one")
	}
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("bad")}); err != nil {
		t.Error(err)
	}
	if _, body := adminGet(t, s, "/damage"); strings.Contains(body, "bad") {
		t.Errorf("nothing needs it any more: %s", body)
	}
}

// An error in place of a damaged object has nothing of the object: neither its name for caches, nor its type and length.
func TestErrorsHaveNoHeadersOfTheObject(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	if _, err := c.PutBucketCors(ctx, &s3.PutBucketCorsInput{Bucket: aws.String(bucket), CORSConfiguration: &types.CORSConfiguration{CORSRules: []types.CORSRule{
		{AllowedMethods: []string{"GET"}, AllowedOrigins: []string{"*"}}}}}); err != nil {
		t.Fatal(err)
	}
	put(t, c, "k", append([]byte("the first block"), make([]byte, 3<<20)...), func(in *s3.PutObjectInput) {
		in.ContentType, in.ContentDisposition, in.ContentLanguage, in.CacheControl = aws.String("x/y"), aws.String("attachment"), aws.String("de"), aws.String("max-age=1000")
		in.Metadata, in.Tagging, in.WebsiteRedirectLocation = map[string]string{"a": "b"}, aws.String("t=1"), aws.String("/elsewhere")
	})
	flipIn(t, filepath.Join(cfg.Dir, "blobs", "*", "*"), "the first block")
	for _, ranges := range []string{"", "bytes=5-10"} {
		r := newSigner().request("GET", s.url()+"/"+bucket+"/k", nil, "X-Amz-Checksum-Mode", "ENABLED")
		r.Header.Set("Origin", "http://example.com")
		if ranges != "" {
			r.Header.Set("Range", ranges)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 500 || !strings.Contains(string(b), "<Code>ObjectDamaged</Code>") || resp.Header.Get("Content-Type") != "application/xml" || resp.Header.Get("Access-Control-Allow-Origin") != "*" {
			t.Errorf("%q: %s %v %s", ranges, resp.Status, resp.Header, b)
		}
		for name := range resp.Header {
			switch name {
			case "Content-Type", "Content-Length", "Date", "Server", "Vary", "X-Amz-Request-Id", "X-Lightmetrics-Damaged", "Access-Control-Allow-Origin", "Access-Control-Allow-Methods":
			default:
				if !strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%q: the error has the header %s: %q", ranges, name, resp.Header[name])
				}
			}
		}
	}
}

// TestLostKeysAsClientsSeeThem: without the index, and with a part of the log gone, nobody knows
// which keys there were: creates and absent keys are 503, until a repair.
func TestLostKeysAsClientsSeeThem(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	for _, k := range []string{"first", "middle", "last"} {
		put(t, c, k, []byte("body of "+k))
	}
	s.stop()
	if err := os.RemoveAll(filepath.Join(cfg.Dir, "index")); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(cfg.Dir, "log", "*.seg"))
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	i := strings.Index(string(b), bucket+"middle")
	copy(b[i-36:], make([]byte, 60)) // head and key
	if err := os.WriteFile(files[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := objectstore.Check(ctx, cfg, telemetry.Discard().Log)
	if err != nil || !v.Uncertain || len(v.Damages) != 1 || v.Objects != 2 {
		t.Errorf("check: %+v, %v", v, err)
	}
	s = start(t, cfg)
	c = s.client()
	if string(get(t, c, "first")) != "body of first" || string(get(t, c, "last")) != "body of last" {
		t.Error("other objects are not served")
	}
	_, err = c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("middle")})
	wantCode(t, err, "ServiceUnavailable", http.StatusServiceUnavailable)
	create := func() error {
		_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("middle"), Body: strings.NewReader("x"), IfNoneMatch: aws.String("*")})
		return err
	}
	wantCode(t, create(), "ServiceUnavailable", http.StatusServiceUnavailable)
	put(t, c, "new", []byte("unconditional"))
	// The lost write may have been one of "first"; it was none of what was written later.
	for key, want := range map[string]string{"first": "true", "last": "", "new": ""} {
		for _, method := range []string{"GET", "HEAD"} {
			resp, err := http.DefaultClient.Do(newSigner().request(method, s.url()+"/"+bucket+"/"+key, nil))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if got := resp.Header.Get("X-Lightmetrics-Uncertain"); resp.StatusCode != 200 || got != want {
				t.Errorf("%s %s: %d, uncertain %q, want %q", method, key, resp.StatusCode, got, want)
			}
		}
	}
	if code, _ := adminGet(t, s, "/-/ready"); code != 503 {
		t.Errorf("ready: %d", code)
	}
	s.stop()
	r, err := objectstore.Repair(ctx, cfg, telemetry.Discard().Log)
	if err != nil || len(r.Lost) != 0 || len(r.Files) == 0 {
		t.Errorf("repair: %+v, %v", r, err)
	}
	s = start(t, cfg)
	c = s.client()
	if err := create(); err != nil {
		t.Errorf("create after the repair: %v", err)
	}
	if string(get(t, c, "first")) != "body of first" {
		t.Error("an object was lost by the repair")
	}
	if code, body := adminGet(t, s, "/-/ready"); code != 200 {
		t.Errorf("ready: %d %s", code, body)
	}
}

// TestDamagedIndexIsBuiltAgain: a table of the index that is found damaged while the store
// runs is replaced by itself.
func TestDamagedIndexIsBuiltAgain(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	for i := range 200 {
		put(t, c, strings.Repeat("k", 20)+string(rune('a'+i%26))+strings.Repeat("x", i), []byte("body"))
	}
	s.stop()
	s = start(t, cfg)
	addr := s.Addr()
	tables, _ := filepath.Glob(filepath.Join(cfg.Dir, "index", "*.sst"))
	if len(tables) == 0 {
		t.Fatal("no tables")
	}
	for _, file := range tables {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(b)-500; i += 97 {
			b[i] ^= 1
		}
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt(b, 0)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	c = s.client()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		page, err := c.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
		if err == nil && len(page.Contents) == 200 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the index was not built again: %v", err)
		}
	}
	if s.Addr() != addr {
		t.Errorf("it listens on %s now, not %s", s.Addr(), addr)
	}
	put(t, c, "after", []byte("b"))
}

// smallDisk gives a file system of its own with so many bytes.
func smallDisk(t *testing.T, bytes string) string {
	t.Helper()
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("needs root, to mount a small disk; TestFullDisk of the engine needs none")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+bytes, "none", dir).CombinedOutput(); err != nil {
		t.Skipf("mount: %v %s", err, out)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

// TestFullDisk: writes are refused before the end, somebody else fills the rest, and still
// deletes work, the store stops and starts, and takes writes when there is room again.
func TestFullDisk(t *testing.T) {
	disk := smallDisk(t, "80m")
	cfg := testConfig(filepath.Join(disk, "data"))
	cfg.Reserve, cfg.Segment, cfg.ReclaimInterval = 16<<20, 1<<20, 50*time.Millisecond
	s := start(t, cfg)
	c := s.client()
	body := random(300 << 10)
	var keys []string
	var err error
	for i := 0; err == nil && i < 1000; i++ {
		key := "k/" + string(rune('a'+i%26)) + strings.Repeat("x", i)
		_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: strings.NewReader(string(body))})
		if err == nil {
			keys = append(keys, key)
		}
	}
	wantCode(t, err, "InsufficientStorage", http.StatusInsufficientStorage)
	if len(keys) < 100 {
		t.Errorf("full after %d objects", len(keys))
	}
	if code, text := adminGet(t, s, "/-/ready"); code != 503 || !strings.Contains(text, "disk is full") {
		t.Errorf("ready: %d %s", code, text)
	}
	other := filepath.Join(disk, "other") // somebody else takes what is left
	f, err := os.Create(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1 << 20, 4 << 10, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, n))
		}
	}
	_ = f.Close()
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: &keys[0]}); err != nil {
		t.Errorf("delete on a full disk: %v", err)
	}
	stopped := make(chan struct{})
	go func() { s.stop(); close(stopped) }()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("the store does not stop on a full disk")
	}
	s = start(t, cfg)
	c = s.client()
	for _, k := range keys[1:] {
		if string(get(t, c, k)) != string(body) {
			t.Fatalf("%q is another one", k)
		}
	}
	for _, k := range keys[1:60] {
		if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: &k}); err != nil {
			t.Fatalf("delete: %v", err)
		}
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, err := c.PutObject(context.Background(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("after"), Body: strings.NewReader("b")})
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no writes are taken again: %v", err)
		}
	}
	if code, text := adminGet(t, s, "/-/ready"); code != 200 {
		t.Errorf("ready: %d %s", code, text)
	}
}
