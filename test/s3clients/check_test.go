package s3clients

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

var ctx = context.Background()

// sdk is the client that checks what the others did.
func sdk() *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(endpoint), UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	})
}

// random gives bytes that no client can make smaller.
func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(b)
	return b
}

// large is a file of the size of the run, made once, and its hash.
type large struct {
	path, sha256 string
	size         int64
}

func makeLarge(t *testing.T) large {
	t.Helper()
	mib := smallLarge
	if v := os.Getenv(largeSize); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < smallLarge {
			t.Fatalf("%s=%q: want a number of MiB, at least %d", largeSize, v, smallLarge)
		}
		mib = n
	}
	l := large{path: filepath.Join(t.TempDir(), "large.bin"), size: int64(mib)<<20 + 12345}
	f, err := os.Create(l.path)
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(f, h), rand.NewChaCha8([32]byte{7}), l.size); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	l.sha256 = hex.EncodeToString(h.Sum(nil))
	return l
}

func hashFile(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return hashOf(t, f)
}

func hashOf(t *testing.T, r io.Reader) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// wantObject checks an object's bytes by their hash.
func wantObject(t *testing.T, bucket, key, want string) *s3.GetObjectOutput {
	t.Helper()
	out, err := sdk().GetObject(ctx, &s3.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		t.Fatalf("read %s/%s: %v", bucket, key, err)
	}
	defer out.Body.Close()
	if got := hashOf(t, out.Body); got != want {
		t.Fatalf("%s/%s has other bytes", bucket, key)
	}
	return out
}

// wantParts checks that an object was stored in parts.
func wantParts(t *testing.T, bucket, key string) {
	t.Helper()
	out, err := sdk().HeadObject(ctx, &s3.HeadObjectInput{Bucket: &bucket, Key: &key, PartNumber: aws.Int32(1)})
	if err != nil {
		t.Fatal(err)
	}
	if aws.ToInt32(out.PartsCount) < 2 {
		t.Fatalf("%s/%s has %d parts", bucket, key, aws.ToInt32(out.PartsCount))
	}
}

// keysOf lists a bucket by the checking client, below a prefix that it cuts off.
func keysOf(t *testing.T, bucket, prefix string) (keys []string) {
	t.Helper()
	p := s3.NewListObjectsV2Paginator(sdk(), &s3.ListObjectsV2Input{Bucket: &bucket, Prefix: &prefix})
	for p.HasMorePages() {
		page, err := p.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Contents {
			keys = append(keys, (*o.Key)[len(prefix):])
		}
	}
	return keys
}

// tree is the content of files by their slash-separated names.
type tree map[string][]byte

// sample is a tree with names that clients must escape.
func sample() tree {
	return tree{
		"plain.txt":                 []byte("plain"),
		"with space.txt":            random(3000, 1),
		"sub/plus+and%25 percent":   random(100, 2),
		"sub/ünïcode-☃.bin":         random(70_000, 3),
		"sub/deeper/a&b=c;d'e(f)~!": random(10, 4),
		"sub/deeper/two-mib":        random(2<<20, 5),
	}
}

func (x tree) write(t *testing.T, dir string) {
	t.Helper()
	for name, b := range x {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// change leaves a tree of which something was removed, replaced and added.
func (x tree) change(t *testing.T, dir string) tree {
	t.Helper()
	y := maps.Clone(x)
	delete(y, "sub/ünïcode-☃.bin")
	if err := os.Remove(filepath.Join(dir, "sub", "ünïcode-☃.bin")); err != nil {
		t.Fatal(err)
	}
	y["plain.txt"] = []byte("replaced and longer") // clients compare sizes and times
	y["added.bin"] = random(500, 9)
	y.write(t, dir)
	return y
}

// wantBelow checks that there is exactly this tree below a prefix of a bucket.
func (x tree) wantBelow(t *testing.T, bucket, prefix string) {
	t.Helper()
	got := keysOf(t, bucket, prefix)
	if want := slices.Sorted(maps.Keys(x)); !slices.Equal(got, want) {
		t.Fatalf("below %s/%s there are\n%q, not\n%q", bucket, prefix, got, want)
	}
	for name, b := range x {
		wantObject(t, bucket, prefix+name, hashOf(t, bytes.NewReader(b)))
	}
}

// wantIn checks that a directory has exactly this tree.
func (x tree) wantIn(t *testing.T, dir string) {
	t.Helper()
	got := tree{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		got[filepath.ToSlash(rel)], err = os.ReadFile(p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(got, x, bytes.Equal) {
		t.Fatalf("%s has %q, or other bytes; want %q", dir, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(x)))
	}
}

// fetch reads a presigned URL as anybody may.
func fetch(t *testing.T, url string) (int, []byte) {
	t.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{}}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b
}
