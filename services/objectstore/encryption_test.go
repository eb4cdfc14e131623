package objectstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// keyFile writes a secret that begins with first, for its owner alone.
func keyFile(t *testing.T, first string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(first+strings.Repeat("7", 64-len(first))+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const plaintext = "these words are in no file of the store"

func longBody(n int) []byte { return bytes.Repeat([]byte(plaintext+"\n"), n/len(plaintext)) }

// onDisk gives the files below dir that have the plaintext.
func onDisk(t *testing.T, dir string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(plaintext)) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func keysOf(t *testing.T, s *server) (r objectstore.KeyReport) {
	t.Helper()
	resp, err := http.Get("http://" + s.AdminAddr() + "/keys")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp.Status, err)
	}
	return r
}

// TestEncryptedObjects: real requests of every kind that moves bodies, with the header of encryption on all answers, over
// a rotation of the key.
func TestEncryptedObjects(t *testing.T) {
	ctx := context.Background()
	cfg := testConfig(t.TempDir())
	one := objectstore.EncryptionKey{ID: "one", File: keyFile(t, "11")}
	two := objectstore.EncryptionKey{ID: "two", Command: []string{"cat", keyFile(t, "22")}}
	cfg.Encryption.Keys, cfg.Encryption.Current = []objectstore.EncryptionKey{one}, "one"
	s := start(t, cfg)
	c := s.client()
	sse := func(what string, got types.ServerSideEncryption) {
		t.Helper()
		if got != types.ServerSideEncryptionAes256 {
			t.Errorf("%s does not name the encryption: %q", what, got)
		}
	}
	want := map[string][]byte{"small": longBody(3000), "empty": {}, "large": longBody(3 << 20)}
	for k, b := range want {
		sse("PUT", put(t, c, k, b, func(in *s3.PutObjectInput) { in.ServerSideEncryption = types.ServerSideEncryptionAes256 }).ServerSideEncryption)
	}
	for _, k := range []string{"small", "large"} {
		out, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("copy/" + k), CopySource: aws.String(bucket + "/" + k)})
		if err != nil {
			t.Fatal(err)
		}
		sse("Copy", out.ServerSideEncryption)
		want["copy/"+k] = want[k]
		if _, err := c.PutObjectTagging(ctx, &s3.PutObjectTaggingInput{Bucket: aws.String(bucket), Key: &k, Tagging: &types.Tagging{TagSet: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}}}); err != nil {
			t.Fatal(err)
		}
	}
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("parts")})
	if err != nil {
		t.Fatal(err)
	}
	sse("CreateMultipartUpload", up.ServerSideEncryption)
	part := longBody(6 << 20)
	p1, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: aws.String("parts"), UploadId: up.UploadId, PartNumber: aws.Int32(1), Body: bytes.NewReader(part)})
	if err != nil {
		t.Fatal(err)
	}
	sse("UploadPart", p1.ServerSideEncryption)
	p2, err := c.UploadPartCopy(ctx, &s3.UploadPartCopyInput{Bucket: aws.String(bucket), Key: aws.String("parts"), UploadId: up.UploadId, PartNumber: aws.Int32(2),
		CopySource: aws.String(bucket + "/large"), CopySourceRange: aws.String("bytes=70000-2000000")})
	if err != nil {
		t.Fatal(err)
	}
	sse("UploadPartCopy", p2.ServerSideEncryption)
	done, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("parts"), UploadId: up.UploadId, MultipartUpload: &types.CompletedMultipartUpload{
		Parts: []types.CompletedPart{{PartNumber: aws.Int32(1), ETag: p1.ETag}, {PartNumber: aws.Int32(2), ETag: p2.CopyPartResult.ETag}}}})
	if err != nil {
		t.Fatal(err)
	}
	sse("Complete", done.ServerSideEncryption)
	want["parts"] = append(bytes.Clone(part), want["large"][70000:2000001]...)
	check := func() {
		t.Helper()
		for k, b := range want {
			if got := get(t, c, k); !bytes.Equal(got, b) {
				t.Errorf("%s: %d bytes, want %d", k, len(got), len(b))
			}
			h, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: &k})
			if err != nil || *h.ContentLength != int64(len(b)) {
				t.Fatalf("HEAD %s: %v", k, err)
			}
			sse("HEAD", h.ServerSideEncryption)
		}
		if found := onDisk(t, cfg.Dir); len(found) > 0 {
			t.Errorf("bodies stand as they are in %v", found)
		}
	}
	check()
	conf, err := c.GetBucketEncryption(ctx, &s3.GetBucketEncryptionInput{Bucket: aws.String(bucket)})
	if err != nil || len(conf.ServerSideEncryptionConfiguration.Rules) != 1 || conf.ServerSideEncryptionConfiguration.Rules[0].ApplyServerSideEncryptionByDefault.SSEAlgorithm != types.ServerSideEncryptionAes256 {
		t.Errorf("the bucket's encryption: %+v, %v", conf, err)
	} else if _, err := c.PutBucketEncryption(ctx, &s3.PutBucketEncryptionInput{Bucket: aws.String(bucket), ServerSideEncryptionConfiguration: conf.ServerSideEncryptionConfiguration}); err != nil {
		t.Error(err)
	}
	kms := &types.ServerSideEncryptionConfiguration{Rules: []types.ServerSideEncryptionRule{{ApplyServerSideEncryptionByDefault: &types.ServerSideEncryptionByDefault{SSEAlgorithm: types.ServerSideEncryptionAwsKms}}}}
	_, err = c.PutBucketEncryption(ctx, &s3.PutBucketEncryptionInput{Bucket: aws.String(bucket), ServerSideEncryptionConfiguration: kms})
	wantCode(t, err, "NotImplemented", 501)

	// The second key by a command; the first is needed until nothing has it.
	s.stop()
	cfg.Encryption.Keys, cfg.Encryption.Current = []objectstore.EncryptionKey{one, two}, "two"
	cfg.Encryption.RewriteRate = 1 << 30
	s = start(t, cfg)
	c = s.client()
	for r := keysOf(t, s); r.RewriteBytes > 0; r = keysOf(t, s) {
		time.Sleep(10 * time.Millisecond)
	}
	r := keysOf(t, s)
	if len(r.Keys) != 2 || r.Keys[0].Bytes != 0 || r.Keys[1].Bytes == 0 || !r.Keys[1].Current || r.Keys[0].Current {
		t.Errorf("after the rotation: %+v", r)
	}
	check()
	s.stop()
	cfg.Encryption.Keys = cfg.Encryption.Keys[1:]
	s = start(t, cfg)
	c = s.client()
	check()
}

// TestKeyIsMissing: a store that was given no keys says so, serves what needs none, and takes no new bodies.
func TestKeyIsMissing(t *testing.T) {
	ctx := context.Background()
	cfg := testConfig(t.TempDir())
	cfg.Encryption.Keys, cfg.Encryption.Current = []objectstore.EncryptionKey{{ID: "one", File: keyFile(t, "11")}}, "one"
	s := start(t, cfg)
	put(t, s.client(), "k", []byte(plaintext))
	s.stop()
	cfg.Encryption = objectstore.DefaultConfig().Encryption
	s = start(t, cfg)
	c := s.client()
	_, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")})
	wantCode(t, err, "KeyUnavailable", 503)
	if _, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")}); err != nil {
		t.Error(err)
	}
	for _, n := range []int{10, 3 << 20} {
		_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("new"), Body: bytes.NewReader(longBody(n))})
		wantCode(t, err, "KeyUnavailable", 503)
	}
	_, err = c.GetBucketEncryption(ctx, &s3.GetBucketEncryptionInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "ServerSideEncryptionConfigurationNotFoundError", 404)
	if r := keysOf(t, s); len(r.Keys) != 1 || r.Keys[0].Given || r.Keys[0].Key != "one" || r.Keys[0].Bytes == 0 {
		t.Errorf("%+v", r)
	}
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")}); err != nil {
		t.Error(err)
	}
	if found := onDisk(t, cfg.Dir); len(found) > 0 {
		t.Errorf("bodies stand as they are in %v", found)
	}
}

// The admin address shows the settings to whoever may look at metrics: the arguments of a command that prints a key are not
// among them, since a key service's token may be.
func TestArgumentsOfKeyCommandsAreNotShown(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Encryption.Keys = []objectstore.EncryptionKey{{ID: "one", Command: []string{"cat", keyFile(t, "11"), "/dev/null"}}}
	cfg.Encryption.Current = "one"
	s := start(t, cfg)
	code, body := adminGet(t, s, "/config")
	if code != 200 || strings.Contains(body, "/dev/null") || strings.Contains(body, filepath.Base(filepath.Dir(cfg.Encryption.Keys[0].Command[1]))) || !strings.Contains(body, "cat <redacted>") && !strings.Contains(body, `cat \u003credacted\u003e`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestEncryptionSettings(t *testing.T) {
	file := keyFile(t, "11")
	key := objectstore.EncryptionKey{ID: "one", File: file}
	for what, e := range map[string]objectstore.Encryption{
		"no current key":        {Keys: []objectstore.EncryptionKey{key}},
		"an unknown one":        {Keys: []objectstore.EncryptionKey{key}, Current: "two"},
		"an id twice":           {Keys: []objectstore.EncryptionKey{key, key}, Current: "one"},
		"a bad id":              {Keys: []objectstore.EncryptionKey{{ID: "a/b", File: file}}, Current: "a/b"},
		"none as an id":         {Keys: []objectstore.EncryptionKey{{ID: "none", File: file}}, Current: "none"},
		"neither file nor else": {Keys: []objectstore.EncryptionKey{{ID: "one"}}, Current: "one"},
		"both":                  {Keys: []objectstore.EncryptionKey{{ID: "one", File: file, Command: []string{"cat", file}}}, Current: "one"},
	} {
		cfg := testConfig(t.TempDir())
		cfg.Encryption = e
		if _, err := objectstore.New(cfg, objectstore.Deps{}); err == nil || !strings.Contains(err.Error(), "encryption.") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t.TempDir())
	cfg.Encryption = objectstore.Encryption{Keys: []objectstore.EncryptionKey{key}, Current: "one"}
	svc, err := objectstore.New(cfg, objectstore.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if err := svc.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "0600") || strings.Contains(err.Error(), "1177") {
		t.Errorf("a key that others may read: %v", err)
	}
	if found, err := os.ReadDir(cfg.Dir); err != nil || len(found) > 0 {
		t.Errorf("the store was opened: %v, %v", found, err)
	}
}
