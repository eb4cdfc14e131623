package objectstore_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func TestObjectsRoundTrip(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	modes := map[string]func(*s3.Options){
		"default":       func(o *s3.Options) { o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenSupported },
		"when_required": func(o *s3.Options) { o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired },
	}
	for name, mode := range modes {
		c := s.client(mode)
		for _, size := range []int{0, 1, 8192, 1 << 20, 1<<20 + 1, 3<<20 + 77} {
			key := fmt.Sprintf("dir/%s é+ %%/%d", name, size)
			body := random(size)
			out := put(t, c, key, body, func(in *s3.PutObjectInput) {
				in.ContentType = aws.String("text/x-test")
				in.Metadata = map[string]string{"one": "1", "two": "zwei"}
				in.Tagging = aws.String("a=b&c=d%20e")
			})
			if got := get(t, c, key); !bytes.Equal(got, body) {
				t.Fatalf("%s: %d bytes came back as %d others", key, size, len(got))
			}
			h, err := c.HeadObject(context.Background(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: &key, ChecksumMode: types.ChecksumModeEnabled})
			if err != nil {
				t.Fatal(err)
			}
			if *h.ETag != *out.ETag || *h.ContentLength != int64(size) || *h.ContentType != "text/x-test" || h.Metadata["two"] != "zwei" || *h.TagCount != 2 {
				t.Errorf("head %s: %+v", key, h)
			}
			if name == "default" && (h.ChecksumCRC32 == nil || *h.ChecksumCRC32 != *out.ChecksumCRC32) {
				t.Errorf("%s: the checksum did not come back", key)
			}
		}
	}
}

func TestEveryChecksumIsVerifiedAndReturned(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	for _, a := range []types.ChecksumAlgorithm{"CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"} {
		put(t, c, "sum/"+string(a), []byte("hello"), func(in *s3.PutObjectInput) { in.ChecksumAlgorithm = a })
		out, err := c.GetObject(context.Background(), &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("sum/" + string(a)), ChecksumMode: types.ChecksumModeEnabled})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(out.Body); err != nil { // the SDK verifies
			t.Error(err)
		}
		have := map[types.ChecksumAlgorithm]*string{"CRC32": out.ChecksumCRC32, "CRC32C": out.ChecksumCRC32C, "CRC64NVME": out.ChecksumCRC64NVME, "SHA1": out.ChecksumSHA1, "SHA256": out.ChecksumSHA256}
		if have[a] == nil {
			t.Errorf("%s: no checksum came back", a)
		}
		if out.Body.Close() != nil {
			t.Error("close")
		}
	}
	_, err := c.PutObject(context.Background(), &s3.PutObjectInput{
		Bucket: aws.String(bucket), Key: aws.String("sum/bad"), Body: bytes.NewReader([]byte("hello")),
		ChecksumSHA256: aws.String("47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
	})
	wantCode(t, err, "BadDigest", 400)
	_, err = c.HeadObject(context.Background(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("sum/bad")})
	wantCode(t, err, "NotFound", 404)
}
