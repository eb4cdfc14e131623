package objectstore_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc64"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// crc64nvme is computed by the standard library, which the store does not use for it.
func crc64nvme(body []byte) string {
	sum := crc64.Checksum(body, crc64.MakeTable(0x9a6c9329ac4bc9b5))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, sum))
}

// withoutChecksums is a client that adds none of its own.
func withoutChecksums(o *s3.Options) {
	o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
}

func wantDefaultSum(t *testing.T, c *s3.Client, key string, body []byte) {
	t.Helper()
	h, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: &key, ChecksumMode: types.ChecksumModeEnabled})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := aws.ToString(h.ChecksumCRC64NVME), crc64nvme(body); got != want || h.ChecksumType != types.ChecksumTypeFullObject {
		t.Errorf("%s: %s %s, want FULL_OBJECT %s", key, h.ChecksumType, got, want)
	}
}

// An object whose client gives no checksum gets a CRC64NVME, as on AWS: however long it is, and its copies, too.
func TestDefaultChecksum(t *testing.T) {
	c := start(t, testConfig(t.TempDir())).client(withoutChecksums)
	for _, size := range []int{0, 1, 70_000, 1<<20 + 1, 3 << 20} {
		body := random(size)
		out := put(t, c, "k", body)
		if aws.ToString(out.ChecksumCRC64NVME) != crc64nvme(body) || out.ChecksumType != types.ChecksumTypeFullObject {
			t.Errorf("%d bytes: the answer has %s %q", size, out.ChecksumType, aws.ToString(out.ChecksumCRC64NVME))
		}
		wantDefaultSum(t, c, "k", body)
		if _, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("copy"), CopySource: aws.String(bucket + "/k")}); err != nil {
			t.Fatal(err)
		}
		wantDefaultSum(t, c, "copy", body)
	}
	// A checksum of the client's takes its place.
	put(t, c, "k", nil, func(in *s3.PutObjectInput) { in.ChecksumAlgorithm = types.ChecksumAlgorithmSha1 })
	h, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), ChecksumMode: types.ChecksumModeEnabled})
	if err != nil || h.ChecksumCRC64NVME != nil || h.ChecksumSHA1 == nil {
		t.Errorf("%+v %v", h, err)
	}
}

// The object of an upload without a checksum has the CRC64NVME of the whole, whatever its parts came with. A client that
// says what it expects is told when it is another one.
func TestDefaultChecksumOfParts(t *testing.T) {
	c := start(t, testConfig(t.TempDir())).client(withoutChecksums)
	bodies := [][]byte{random(partSize), random(partSize), random(partSize), random(77)}
	put(t, c, "source", bodies[2])
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("k")})
	if err != nil || up.ChecksumAlgorithm != "" {
		t.Fatalf("%+v %v", up, err)
	}
	var parts []types.CompletedPart
	for i, algorithm := range []types.ChecksumAlgorithm{"", types.ChecksumAlgorithmCrc32, "copy", types.ChecksumAlgorithmCrc64nvme} {
		n := aws.Int32(int32(i + 1))
		part := types.CompletedPart{PartNumber: n}
		if algorithm == "copy" {
			out, err := c.UploadPartCopy(ctx, &s3.UploadPartCopyInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: up.UploadId, PartNumber: n, CopySource: aws.String(bucket + "/source")})
			if err != nil || out.CopyPartResult.ChecksumCRC64NVME != nil {
				t.Fatalf("%+v %v", out, err)
			}
			part.ETag = out.CopyPartResult.ETag
		} else {
			out, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: up.UploadId, PartNumber: n,
				Body: bytes.NewReader(bodies[i]), ChecksumAlgorithm: algorithm})
			if err != nil {
				t.Fatal(err)
			}
			if got := aws.ToString(out.ChecksumCRC64NVME); algorithm != types.ChecksumAlgorithmCrc32 && got != crc64nvme(bodies[i]) {
				t.Errorf("part %d has %q", i+1, got)
			}
			part.ETag, part.ChecksumCRC64NVME, part.ChecksumCRC32 = out.ETag, out.ChecksumCRC64NVME, out.ChecksumCRC32
		}
		parts = append(parts, part)
	}
	list, err := c.ListParts(ctx, &s3.ListPartsInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: up.UploadId})
	if err != nil || len(list.Parts) != 4 || list.ChecksumAlgorithm != "null" || list.Parts[0].ChecksumCRC64NVME != nil {
		t.Errorf("parts: %+v %v", list, err)
	}
	whole := bytes.Join(bodies, nil)
	_, err = complete(c, "k", *up.UploadId, parts, func(in *s3.CompleteMultipartUploadInput) { in.ChecksumCRC64NVME = aws.String(crc64nvme(bodies[0])) })
	wantCode(t, err, "BadDigest", 400)
	wrong := append([]types.CompletedPart{{ETag: parts[0].ETag, PartNumber: parts[0].PartNumber, ChecksumCRC64NVME: aws.String(crc64nvme(nil))}}, parts[1:]...)
	_, err = complete(c, "k", *up.UploadId, wrong)
	wantCode(t, err, "InvalidPart", 400)
	out, err := complete(c, "k", *up.UploadId, parts, func(in *s3.CompleteMultipartUploadInput) { in.ChecksumCRC64NVME = aws.String(crc64nvme(whole)) })
	if err != nil || aws.ToString(out.ChecksumCRC64NVME) != crc64nvme(whole) {
		t.Fatalf("%+v %v", out, err)
	}
	wantDefaultSum(t, c, "k", whole)
}
