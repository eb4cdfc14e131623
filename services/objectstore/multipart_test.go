package objectstore_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
)

const partSize = 5 << 20

func complete(c *s3.Client, key, id string, parts []types.CompletedPart, opts ...func(*s3.CompleteMultipartUploadInput)) (*s3.CompleteMultipartUploadOutput, error) {
	in := &s3.CompleteMultipartUploadInput{Bucket: aws.String(bucket), Key: &key, UploadId: &id, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts}}
	for _, o := range opts {
		o(in)
	}
	return c.CompleteMultipartUpload(ctx, in)
}

// An upload by parts becomes one object: whole, by ranges and by parts, with what its beginning said of it; conditions
// are those of a PUT; a complete that is repeated gives the same answer.
func TestMultipart(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	one, two := bytes.Repeat([]byte("1"), partSize), []byte("the end")
	put(t, c, "k", []byte("old"))
	up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("k"), ContentType: aws.String("x/y"),
		Metadata: map[string]string{"a": "b"}, Tagging: aws.String("t=1")})
	if err != nil {
		t.Fatal(err)
	}
	store := func(n int32, body []byte) types.CompletedPart {
		t.Helper()
		p, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: up.UploadId, PartNumber: &n, Body: bytes.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		return types.CompletedPart{ETag: p.ETag, PartNumber: &n}
	}
	last, first := store(9, two), store(3, one)
	// The middle one is a range of another object.
	put(t, c, "source", append([]byte("xx"), one...))
	cp, err := c.UploadPartCopy(ctx, &s3.UploadPartCopyInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: up.UploadId, PartNumber: aws.Int32(5),
		CopySource: aws.String(bucket + "/source"), CopySourceRange: aws.String(fmt.Sprintf("bytes=2-%d", partSize+1))})
	if err != nil || *cp.CopyPartResult.ETag != *first.ETag {
		t.Fatalf("%+v %v", cp, err)
	}
	parts := []types.CompletedPart{first, {ETag: cp.CopyPartResult.ETag, PartNumber: aws.Int32(5)}, last}
	if string(get(t, c, "k")) != "old" {
		t.Error("an upload that is not complete shows")
	}
	list, err := c.ListParts(ctx, &s3.ListPartsInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: up.UploadId, MaxParts: aws.Int32(2)})
	if err != nil || len(list.Parts) != 2 || *list.Parts[0].PartNumber != 3 || !*list.IsTruncated || *list.NextPartNumberMarker != "5" {
		t.Errorf("parts: %+v %v", list, err)
	}
	uploads, err := c.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{Bucket: aws.String(bucket)})
	if err != nil || len(uploads.Uploads) != 1 || *uploads.Uploads[0].UploadId != *up.UploadId {
		t.Errorf("uploads: %+v %v", uploads, err)
	}
	for name, bad := range map[string][]types.CompletedPart{
		"InvalidPart":      {{ETag: first.ETag, PartNumber: aws.Int32(4)}},
		"InvalidPartOrder": {last, first},
		"EntityTooSmall":   {{ETag: first.ETag, PartNumber: aws.Int32(3)}, last, {ETag: last.ETag, PartNumber: aws.Int32(10)}},
	} {
		_, err := complete(c, "k", *up.UploadId, bad)
		wantCode(t, err, name, 400)
	}
	_, err = complete(c, "k", *up.UploadId, parts, func(in *s3.CompleteMultipartUploadInput) { in.IfNoneMatch = aws.String("*") })
	wantCode(t, err, "PreconditionFailed", 412)
	_, err = complete(c, "k", *up.UploadId, parts, func(in *s3.CompleteMultipartUploadInput) { in.IfMatch = aws.String(`"no"`) })
	wantCode(t, err, "PreconditionFailed", 412)
	old, _ := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")})
	var tags [2]string
	for i := range tags { // the second is that of a client that did not get the answer
		out, err := complete(c, "k", *up.UploadId, parts, func(in *s3.CompleteMultipartUploadInput) { in.IfMatch = old.ETag })
		if err != nil {
			t.Fatal(err)
		}
		tags[i] = *out.ETag
	}
	if !strings.HasSuffix(tags[0], `-3"`) || tags[0] != tags[1] {
		t.Errorf("ETags %v", tags)
	}
	s.stop()
	c = start(t, cfg).client()
	want := append(append(bytes.Clone(one), one...), two...)
	if !bytes.Equal(get(t, c, "k"), want) {
		t.Error("the object is not its parts")
	}
	for n, size := range map[int32]int{1: partSize, 2: partSize, 3: len(two)} {
		out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), PartNumber: &n})
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(out.Body)
		out.Body.Close()
		from := int(n-1) * partSize
		if !bytes.Equal(b, want[from:from+size]) || *out.PartsCount != 3 || *out.ContentRange != fmt.Sprintf("bytes %d-%d/%d", from, from+size-1, len(want)) {
			t.Errorf("part %d: %d bytes, %v of %v", n, len(b), aws.ToString(out.ContentRange), out.PartsCount)
		}
	}
	_, err = c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), PartNumber: aws.Int32(4)})
	wantCode(t, err, "InvalidPartNumber", 416)
	out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), Range: aws.String(fmt.Sprintf("bytes=%d-%d", partSize-2, 2*partSize+3))})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(out.Body)
	out.Body.Close()
	if !bytes.Equal(b, want[partSize-2:2*partSize+4]) || *out.ContentType != "x/y" || out.Metadata["a"] != "b" || *out.TagCount != 1 {
		t.Errorf("a range over parts: %d bytes, %+v", len(b), out)
	}
	attrs, err := c.GetObjectAttributes(ctx, &s3.GetObjectAttributesInput{Bucket: aws.String(bucket), Key: aws.String("k"), ObjectAttributes: []types.ObjectAttributes{types.ObjectAttributesObjectParts}})
	if err != nil || *attrs.ObjectParts.TotalPartsCount != 3 {
		t.Errorf("attributes: %+v %v", attrs, err)
	}
	_, err = c.ListParts(ctx, &s3.ListPartsInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: up.UploadId})
	wantCode(t, err, "NoSuchUpload", 404)
	put(t, c, "k", []byte("new"))
	_, err = complete(c, "k", *up.UploadId, parts)
	wantCode(t, err, "NoSuchUpload", 404)
}

// Checksums of uploads: of each part, of the whole, and of the parts' checksums.
func TestMultipartChecksums(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	one, two := bytes.Repeat([]byte("1"), partSize), []byte("the end")
	sum := func(a string, texts ...[]byte) []byte {
		h := checksum.New(a)
		for _, b := range texts {
			h.Write(b)
		}
		return h.Sum(nil)
	}
	text := base64.StdEncoding.EncodeToString
	for _, a := range checksum.Algorithms {
		for _, kind := range []string{"FULL_OBJECT", "COMPOSITE"} {
			key := a + kind
			up, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: &key, ChecksumAlgorithm: types.ChecksumAlgorithm(a), ChecksumType: types.ChecksumType(kind)})
			if possible := kind == "FULL_OBJECT" && checksum.Combines(a) || kind == "COMPOSITE" && a != "CRC64NVME"; !possible {
				wantCode(t, err, "InvalidRequest", 400)
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			var xml string
			for i, b := range [][]byte{one, two} {
				target := fmt.Sprintf("%s/%s/%s?partNumber=%d&uploadId=%s", s.url(), bucket, key, i+1, *up.UploadId)
				if i == 1 {
					if st, name, _ := send(t, newSigner().request("PUT", target, b, checksum.Header(a), text(sum(a, []byte("other"))))); st != 400 || name != "BadDigest" {
						t.Errorf("%s: a part with a wrong checksum: %d %s", key, st, name)
					}
				}
				resp, err := http.DefaultClient.Do(newSigner().request("PUT", target, b, checksum.Header(a), text(sum(a, b))))
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != 200 || resp.Header.Get(checksum.Header(a)) != text(sum(a, b)) {
					t.Errorf("%s: part %d: %v", key, i+1, resp)
				}
				xml += fmt.Sprintf("<Part><PartNumber>%d</PartNumber><ETag>%s</ETag><Checksum%s>%s</Checksum%s></Part>", i+1, resp.Header.Get("ETag"), a, text(sum(a, b)), a)
			}
			want := text(sum(a, one, two))
			if kind == "COMPOSITE" {
				want = text(sum(a, sum(a, one), sum(a, two))) + "-2"
			}
			target := fmt.Sprintf("%s/%s/%s?uploadId=%s", s.url(), bucket, key, *up.UploadId)
			xml = "<CompleteMultipartUpload>" + xml + "</CompleteMultipartUpload>"
			wrong := text(sum(a, []byte("other")))
			if kind == "COMPOSITE" {
				wrong += "-2"
			}
			if st, name, _ := send(t, newSigner().request("POST", target, []byte(xml), checksum.Header(a), wrong)); st != 400 || name != "BadDigest" {
				t.Errorf("%s: a wrong checksum of the whole: %d %s", key, st, name)
			}
			if st, _, b := send(t, newSigner().request("POST", target, []byte(xml), checksum.Header(a), want)); st != 200 || !strings.Contains(string(b), ">"+want+"</Checksum"+a) || !strings.Contains(string(b), kind) {
				t.Errorf("%s: %d %s, want %s", key, st, b, want)
			}
			resp, err := http.DefaultClient.Do(newSigner().request("HEAD", s.url()+"/"+bucket+"/"+key, nil, "X-Amz-Checksum-Mode", "ENABLED"))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.Header.Get(checksum.Header(a)) != want || resp.Header.Get("X-Amz-Checksum-Type") != kind {
				t.Errorf("%s: HEAD: %v", key, resp.Header)
			}
		}
	}
}

// What a policy says of PutObject holds for uploads, and its conditions for what makes the object.
func TestMultipartUnderPolicy(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	policy := `{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::` + bucket + `/once/*",` +
		`"Condition":{"Null":{"s3:if-none-match":"true"},"Bool":{"s3:ObjectCreationOperation":"true"}}},` +
		`{"Effect":"Deny","Principal":"*","Action":["s3:GetObject","s3:PutObject","s3:AbortMultipartUpload"],"Resource":"arn:aws:s3:::` + bucket + `/never/*"}]}`
	if _, err := c.PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: aws.String(bucket), Policy: &policy}); err != nil {
		t.Fatal(err)
	}
	id, parts := upload(t, c, "once/k", []byte("x"))
	_, err := complete(c, "once/k", id, parts)
	wantCode(t, err, "AccessDenied", 403)
	if _, err := complete(c, "once/k", id, parts, func(in *s3.CompleteMultipartUploadInput) { in.IfNoneMatch = aws.String("*") }); err != nil {
		t.Error(err)
	}
	_, err = c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("never/k")})
	wantCode(t, err, "AccessDenied", 403)
	_, err = c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("never/k"), UploadId: &id})
	wantCode(t, err, "AccessDenied", 403)
	_, err = c.GetObjectAttributes(ctx, &s3.GetObjectAttributesInput{Bucket: aws.String(bucket), Key: aws.String("never/k"), ObjectAttributes: []types.ObjectAttributes{"ETag"}})
	wantCode(t, err, "AccessDenied", 403)
}

// An aborted upload is gone with its parts.
func TestAbortedUploads(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	id, parts := upload(t, c, "k", []byte("x"))
	if _, err := c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: &id}); err != nil {
		t.Fatal(err)
	}
	_, err := c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: &id})
	wantCode(t, err, "NoSuchUpload", 404)
	_, err = complete(c, "k", id, parts)
	wantCode(t, err, "NoSuchUpload", 404)
	_, err = c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(bucket), Key: aws.String("k"), UploadId: &id, PartNumber: aws.Int32(1), Body: bytes.NewReader([]byte("x"))})
	wantCode(t, err, "NoSuchUpload", 404)
	if _, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")}); err == nil || errors.Is(err, io.EOF) {
		t.Error("an aborted upload made an object")
	}
}

// What a request to end an upload asks for and this store can't check is refused, and nothing is made or removed.
func TestUploadEndsRefuseWhatTheyCannotCheck(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	id, parts := upload(t, c, "k", []byte("x"))
	target := fmt.Sprintf("%s/%s/k?uploadId=%s", s.url(), bucket, id)
	part := fmt.Sprintf("<Part><PartNumber>1</PartNumber><ETag>%s</ETag></Part>", *parts[0].ETag)
	body := func(inner string) []byte {
		return []byte("<CompleteMultipartUpload>" + inner + "</CompleteMultipartUpload>")
	}
	sum := base64.StdEncoding.EncodeToString(make([]byte, 32))
	if st, name, b := send(t, newSigner().request("POST", target, body(part), "X-Amz-Checksum-Sha256", sum)); st != 400 || name != "InvalidRequest" {
		t.Errorf("a checksum of an algorithm that the upload has not: %d %s", st, b)
	}
	if st, name, b := send(t, newSigner().request("POST", target, body(strings.Repeat("<Part/>", 10001)))); st != 400 || name != "MalformedXML" {
		t.Errorf("10001 parts: %d %s", st, b)
	}
	if st, name, b := send(t, newSigner().request("DELETE", target, nil, "X-Amz-If-Match-Initiated-Time", "soon")); st != 400 || name != "InvalidArgument" {
		t.Errorf("abort at a time that is none: %d %s", st, b)
	}
	if st, _, b := send(t, newSigner().request("GET", s.url()+"/"+bucket+"?list-type=2&prefix=%00", nil)); st != 200 || strings.Contains(string(b), "<Key>") {
		t.Errorf("a listing shows hidden keys: %d %s", st, b)
	}
	if _, err := complete(c, "k", id, parts); err != nil {
		t.Error(err)
	}
}
