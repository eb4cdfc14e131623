package objectstore_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// usageOf gives the bytes and objects of the test's bucket.
func usageOf(t *testing.T, s *server) (int64, int64) {
	t.Helper()
	resp, err := http.Get("http://" + s.AdminAddr() + "/usage")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var r objectstore.UsageReport
	if err := json.NewDecoder(resp.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	for _, u := range r.Buckets {
		if u.Bucket == bucket {
			return u.Bytes, u.Objects
		}
	}
	return 0, 0
}

func setQuota(t *testing.T, s *server, name, body string) int {
	t.Helper()
	r, err := http.NewRequest(http.MethodPut, "http://"+s.AdminAddr()+"/quotas/"+name, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestQuota: every kind of write is held to the quota, what makes a bucket smaller never is, and nothing of a refused
// write stays.
func TestQuota(t *testing.T) {
	ctx := context.Background()
	cfg := testConfig(t.TempDir())
	cfg.Quotas = []objectstore.BucketQuota{{Bucket: bucket, Bytes: 10 << 20, Objects: 5}, {Bucket: "absent-bucket", Bytes: 1}}
	s := start(t, cfg)
	c := s.client()
	want := func(bytes, objects int64) {
		t.Helper()
		if b, o := usageOf(t, s); b != bytes || o != objects {
			t.Errorf("%d bytes in %d objects, want %d in %d", b, o, bytes, objects)
		}
	}
	refused := func(err error) {
		t.Helper()
		wantCode(t, err, "QuotaExceeded", 403)
	}
	write := func(key string, size int) error {
		_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader(longBody(size + 100)[:size])})
		return err
	}
	put(t, c, "a", longBody(6<<20 + 100)[:6<<20])
	put(t, c, "b", []byte("12345"))
	want(6<<20+5, 2)
	refused(write("c", 5<<20))
	refused(write("b", 5<<20))
	want(6<<20+5, 2)
	put(t, c, "a", longBody(9<<20 + 100)[:9<<20]) // it takes the place of the first
	want(9<<20+5, 2)
	put(t, c, "a", longBody(5<<20 + 100)[:5<<20])
	_, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("copy"), CopySource: aws.String(bucket + "/a")})
	refused(err)
	// A condition that fails is the answer that freeing space would not change.
	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("a"), Body: bytes.NewReader(longBody(9 << 20)), IfNoneMatch: aws.String("*")})
	wantCode(t, err, "PreconditionFailed", 412)

	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("parts")})
	if err != nil {
		t.Fatal(err)
	}
	part := func(n int32, size int) (types.CompletedPart, error) {
		out, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: aws.String("parts"), UploadId: up.UploadId, PartNumber: &n, Body: bytes.NewReader(longBody(size + 100)[:size])})
		if err != nil {
			return types.CompletedPart{}, err
		}
		return types.CompletedPart{PartNumber: &n, ETag: out.ETag}, nil
	}
	first, err := part(1, 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := part(2, 1<<20); err != nil {
		t.Fatal(err)
	}
	want(9<<20+5, 2)
	_, err = part(3, 2<<20)
	refused(err)
	_, err = c.UploadPartCopy(ctx, &s3.UploadPartCopyInput{Bucket: aws.String(bucket), Key: aws.String("parts"), UploadId: up.UploadId, PartNumber: aws.Int32(3), CopySource: aws.String(bucket + "/a")})
	refused(err)
	// Completing takes one part; the other one's bytes are free then.
	if _, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("parts"), UploadId: up.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{first}}}); err != nil {
		t.Fatal(err)
	}
	want(8<<20+5, 3)
	put(t, c, "d", nil)
	put(t, c, "e", nil)
	refused(write("f", 0))
	put(t, c, "e", []byte("1"))
	for _, status := range []int{setQuota(t, s, bucket, `{"bytes": 1, "objects": 1}`), setQuota(t, s, bucket, `{"bytes": 1, "objects": 1}`)} {
		if status != 200 {
			t.Errorf("set a quota: %d", status)
		}
	}
	// Below what is there: no more, but less.
	refused(write("b", 6))
	put(t, c, "b", []byte("1234"))
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("a")}); err != nil {
		t.Error(err)
	}
	want(3<<20+5, 4)
	for body, status := range map[string]int{`{"bytes": -1}`: 400, `{"byte": 1}`: 400, `x`: 400, `{}`: 200} {
		if got := setQuota(t, s, bucket, body); got != status {
			t.Errorf("quota %s: %d, want %d", body, got, status)
		}
	}
	if got := setQuota(t, s, "absent-bucket", `{}`); got != 404 {
		t.Errorf("the quota of no bucket: %d", got)
	}
	put(t, c, "f", longBody(9<<20))
	if status := setQuota(t, s, bucket, `{"objects": 5}`); status != 200 {
		t.Error(status)
	}
	before, objects := usageOf(t, s)
	cfg.Quotas = nil
	s.stop()
	s = start(t, cfg)
	c = s.client()
	want(before, objects)
	refused(write("g", 1)) // the quota by the admin path is in the log
}

// TestQuotaOfRacers: many writers at a time never get over a quota, by a byte or by an object.
func TestQuotaOfRacers(t *testing.T) {
	cfg := testConfig(t.TempDir())
	const size, room = 1000, 57
	cfg.Quotas = []objectstore.BucketQuota{{Bucket: bucket, Bytes: room*size + size - 1}}
	s := start(t, cfg)
	c := s.client()
	var taken atomic.Int64
	var clients sync.WaitGroup
	for i := range 16 {
		clients.Go(func() {
			for j := range 8 {
				_, err := c.PutObject(context.Background(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String(fmt.Sprintf("%d/%d", i, j)), Body: bytes.NewReader(make([]byte, size))})
				if err == nil {
					taken.Add(1)
				} else {
					wantCode(t, err, "QuotaExceeded", 403)
				}
			}
		})
	}
	clients.Wait()
	if b, o := usageOf(t, s); taken.Load() != room || o != room || b != room*size {
		t.Errorf("%d were taken; %d objects with %d bytes", taken.Load(), o, b)
	}
}
