package objectstore_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// An object of as many parts as there can be, each with a checksum, encrypted, locked and in a bucket of versions: it is
// completed, read whole and by parts, and is the same after a restart.
func TestAsManyPartsAsThereCanBe(t *testing.T) {
	t.Parallel() // most of it is waiting
	const parts = 10000
	cfg := testConfig(t.TempDir())
	cfg.Encryption.Keys, cfg.Encryption.Current = []objectstore.EncryptionKey{{ID: strings.Repeat("k", 32), File: keyFile(t, "11")}}, strings.Repeat("k", 32)
	s := startWith(t, cfg, objectstore.Deps{LeastPart: 1})
	c := s.client()
	withVault(t, c)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	key := strings.Repeat("k", 1000) // long names are in the record too
	user := map[string]string{"a": strings.Repeat("v", 2000)}
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(vault), Key: &key, ChecksumAlgorithm: types.ChecksumAlgorithmSha256, Metadata: user,
		ObjectLockMode: types.ObjectLockModeGovernance, ObjectLockRetainUntilDate: &until, ObjectLockLegalHoldStatus: types.ObjectLockLegalHoldStatusOn})
	if err != nil {
		t.Fatal(err)
	}
	body := func(n int) []byte { return fmt.Appendf(nil, "%s%d;", plaintext, n) }
	done, numbers := make([]types.CompletedPart, parts), make(chan int)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for n := range numbers {
				out, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(vault), Key: &key, UploadId: up.UploadId, PartNumber: aws.Int32(int32(n)),
					Body: bytes.NewReader(body(n)), ChecksumAlgorithm: types.ChecksumAlgorithmSha256})
				if err != nil {
					t.Errorf("part %d: %v", n, err)
					continue
				}
				done[n-1] = types.CompletedPart{PartNumber: aws.Int32(int32(n)), ETag: out.ETag, ChecksumSHA256: out.ChecksumSHA256}
			}
		})
	}
	var want []byte
	for n := 1; n <= parts; n++ {
		numbers <- n
		want = append(want, body(n)...)
	}
	close(numbers)
	wg.Wait()
	if t.Failed() {
		return
	}
	out, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: aws.String(vault), Key: &key, UploadId: up.UploadId,
		IfNoneMatch: aws.String("*"), MultipartUpload: &types.CompletedMultipartUpload{Parts: done}})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(*out.ETag, `-10000"`) || !strings.HasSuffix(aws.ToString(out.ChecksumSHA256), "-10000") || out.ServerSideEncryption != types.ServerSideEncryptionAes256 {
		t.Errorf("completed: %+v", out)
	}
	check := func(when string) {
		t.Helper()
		got, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(vault), Key: &key})
		if err != nil {
			t.Fatal(when, err)
		}
		b, err := io.ReadAll(got.Body)
		got.Body.Close()
		if err != nil || !bytes.Equal(b, want) || !got.ObjectLockRetainUntilDate.Equal(until) || got.Metadata["a"] != user["a"] || *got.VersionId != *out.VersionId {
			t.Errorf("%s: %d of %d bytes, %v, %+v", when, len(b), len(want), err, got)
		}
		for _, n := range []int32{1, 4711, parts} {
			got, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(vault), Key: &key, PartNumber: &n})
			if err != nil {
				t.Fatal(when, n, err)
			}
			b, _ := io.ReadAll(got.Body)
			got.Body.Close()
			if !bytes.Equal(b, body(int(n))) || *got.PartsCount != parts {
				t.Errorf("%s: part %d of %d is %q", when, n, *got.PartsCount, b)
			}
		}
		attrs, err := c.GetObjectAttributes(ctx, &s3.GetObjectAttributesInput{Bucket: aws.String(vault), Key: &key, ObjectAttributes: []types.ObjectAttributes{types.ObjectAttributesObjectParts, types.ObjectAttributesChecksum}})
		if err != nil || *attrs.ObjectParts.TotalPartsCount != parts || *attrs.Checksum.ChecksumSHA256 != *out.ChecksumSHA256 {
			t.Errorf("%s: attributes %+v %v", when, attrs, err)
		}
		wantCode(t, destroy(c, key, *out.VersionId, false), "AccessDenied", 403)
	}
	check("as it was made")
	s.stop()
	s = startWith(t, cfg, objectstore.Deps{LeastPart: 1})
	c = s.client()
	check("after a restart")
	if found := onDisk(t, cfg.Dir); len(found) > 0 {
		t.Errorf("%d files have the bytes as they are", len(found))
	}
	if err := hold(c, key, *out.VersionId, types.ObjectLockLegalHoldStatusOff); err != nil {
		t.Fatal(err)
	}
	if err := destroy(c, key, *out.VersionId, true); err != nil {
		t.Error(err)
	}
}
