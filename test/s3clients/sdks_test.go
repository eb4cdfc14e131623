package s3clients

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// script runs a program that prints a line for each feature.
func script(t *testing.T, client, version string, x *tool, program string, args ...string) {
	t.Helper()
	p := played{client: client, version: version}
	out, err := x.try(program, args...)
	for line := range strings.Lines(out) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "ok":
			p.passed = append(p.passed, rest)
		case "FAIL":
			name, _, _ := strings.Cut(rest, ":")
			p.failed = append(p.failed, name)
			t.Error(rest)
		}
	}
	if err != nil {
		t.Error(err)
	}
	if len(p.passed) == 0 {
		t.Error("nothing passed")
	}
	ran.add(p)
}

func TestBoto3(t *testing.T) {
	need(t, "boto3", "python3")
	// A python3 of a version manager finds its versions below the user's home.
	x := newTool(t, "HOME="+os.Getenv("HOME"), "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null")
	version, err := x.try("python3", "-c", "import boto3; print(boto3.__version__)")
	if err != nil {
		skip(t, "boto3", "python3 has no boto3")
	}
	path, err := filepath.Abs("testdata/boto3_client.py")
	if err != nil {
		t.Fatal(err)
	}
	script(t, "boto3", strings.TrimSpace(version), x, "python3", path, endpoint, makeLarge(t).path, filepath.Join(x.dir, "back"))
}

func TestJavaScript(t *testing.T) {
	const name = "aws-sdk-js"
	need(t, name, "node", "npm")
	x := newTool(t)
	for _, f := range []string{"package.json", "client.mjs"} {
		b, err := os.ReadFile(filepath.Join("testdata", f))
		if err == nil {
			err = os.WriteFile(filepath.Join(x.dir, f), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// npm must reach its registry, so it has the whole environment.
	npm := &tool{dir: x.dir, env: os.Environ()}
	if _, err := npm.try("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"); err != nil {
		skip(t, name, "npm install: "+strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", " | "))
	}
	version := x.run(t, "node", "-p", `require("@aws-sdk/client-s3/package.json").version`)
	script(t, name, strings.TrimSpace(version), x, "node", "client.mjs", endpoint, makeLarge(t).path, filepath.Join(x.dir, "back"))
}

func apiCode(err error) string {
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

func TestGoSDK(t *testing.T) {
	const bucket = "aws-sdk-go"
	c, in := sdk(), aws.String(bucket)
	read := func(t *testing.T, key, span string) []byte {
		t.Helper()
		q := &s3.GetObjectInput{Bucket: in, Key: &key}
		if span != "" {
			q.Range = &span
		}
		out, err := c.GetObject(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Body.Close()
		b, err := io.ReadAll(out.Body)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	put := func(t *testing.T, q s3.PutObjectInput) {
		t.Helper()
		q.Bucket, q.Body = in, bytes.NewReader(small)
		if _, err := c.PutObject(ctx, &q); err != nil {
			t.Fatal(err)
		}
	}
	play(t, "aws-sdk-go", aws.SDKVersion,
		step{"create a bucket", func(t *testing.T) {
			if _, err := c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: in}); err != nil {
				t.Fatal(err)
			}
		}},
		step{"put and get", func(t *testing.T) {
			put(t, s3.PutObjectInput{Key: aws.String("a b/sm+all.txt")})
			if got := read(t, "a b/sm+all.txt", ""); !bytes.Equal(got, small) {
				t.Fatalf("%q", got)
			}
		}},
		step{"metadata", func(t *testing.T) {
			put(t, s3.PutObjectInput{Key: aws.String("meta"), Metadata: map[string]string{"color": "blue"}, ContentType: aws.String("text/x-fox"), Tagging: aws.String("a=1")})
			out, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: in, Key: aws.String("meta")})
			if err != nil || out.Metadata["color"] != "blue" || aws.ToString(out.ContentType) != "text/x-fox" {
				t.Fatalf("%+v, %v", out, err)
			}
		}},
		step{"range", func(t *testing.T) {
			if got := read(t, "meta", "bytes=4-8"); !bytes.Equal(got, small[4:9]) {
				t.Fatalf("%q", got)
			}
		}},
		step{"conditions", func(t *testing.T) {
			_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: in, Key: aws.String("meta"), Body: bytes.NewReader(small), IfNoneMatch: aws.String("*")})
			if apiCode(err) != "PreconditionFailed" {
				t.Fatal(err)
			}
		}},
		step{"copy", func(t *testing.T) {
			if _, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: in, Key: aws.String("copied"), CopySource: aws.String(bucket + "/a%20b/sm%2Ball.txt")}); err != nil {
				t.Fatal(err)
			}
			if got := read(t, "copied", ""); !bytes.Equal(got, small) {
				t.Fatalf("%q", got)
			}
		}},
		step{"multipart", func(t *testing.T) { uploadInParts(t, c, bucket) }},
		step{"presigned", func(t *testing.T) {
			r, err := s3.NewPresignClient(c).PresignGetObject(ctx, &s3.GetObjectInput{Bucket: in, Key: aws.String("copied")})
			if err != nil {
				t.Fatal(err)
			}
			if status, b := fetch(t, r.URL); status != 200 || !bytes.Equal(b, small) {
				t.Fatalf("%d %s", status, b)
			}
		}},
		step{"list", func(t *testing.T) {
			want := []string{"a b/sm+all.txt", "copied", "meta"}
			if got := keysOf(t, bucket, ""); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Fatalf("%q", got)
			}
		}},
		step{"delete", func(t *testing.T) {
			var ids []types.ObjectIdentifier
			for _, k := range keysOf(t, bucket, "") {
				ids = append(ids, types.ObjectIdentifier{Key: &k})
			}
			if _, err := c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: in, Delete: &types.Delete{Objects: ids}}); err != nil {
				t.Fatal(err)
			}
			if _, err := c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: in}); err != nil {
				t.Fatal(err)
			}
		}},
	)
}

// uploadInParts stores the large file in parts of 8 MiB, which the SDK does not do by itself, and deletes it again.
func uploadInParts(t *testing.T, c *s3.Client, bucket string) {
	l := makeLarge(t)
	f, err := os.Open(l.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in, key := &bucket, aws.String("large")
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: in, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	const size = 8 << 20
	var parts []types.CompletedPart
	for at := int64(0); at < l.size; at += size {
		n := aws.Int32(int32(len(parts) + 1))
		p, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: in, Key: key, UploadId: up.UploadId, PartNumber: n, Body: io.NewSectionReader(f, at, min(size, l.size-at))})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, types.CompletedPart{PartNumber: n, ETag: p.ETag, ChecksumCRC32: p.ChecksumCRC32})
	}
	if _, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: in, Key: key, UploadId: up.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}}); err != nil {
		t.Fatal(err)
	}
	wantObject(t, bucket, "large", l.sha256)
	wantParts(t, bucket, "large")
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: in, Key: key}); err != nil {
		t.Fatal(err)
	}
}
