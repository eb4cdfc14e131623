package objectstore_test

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/checksum"
)

// Tags of a bucket outlive a restart; what no bucket has is answered as by AWS.
func TestSettingsOfABucket(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	if _, err := c.GetBucketTagging(t.Context(), &s3.GetBucketTaggingInput{Bucket: aws.String(bucket)}); err == nil {
		t.Error("a bucket without tags has some")
	} else {
		wantCode(t, err, "NoSuchTagSet", 404)
	}
	tags := &types.Tagging{TagSet: []types.Tag{{Key: aws.String("b"), Value: aws.String("")}, {Key: aws.String("a"), Value: aws.String("1 ü")}}}
	if _, err := c.PutBucketTagging(t.Context(), &s3.PutBucketTaggingInput{Bucket: aws.String(bucket), Tagging: tags}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String("bucket-two"), CreateBucketConfiguration: &types.CreateBucketConfiguration{Tags: tags.TagSet}}); err != nil {
		t.Fatal(err)
	}
	s.stop()
	c = start(t, cfg).client()
	for _, b := range []string{bucket, "bucket-two"} {
		out, err := c.GetBucketTagging(t.Context(), &s3.GetBucketTaggingInput{Bucket: aws.String(b)})
		if err != nil || len(out.TagSet) != 2 || *out.TagSet[0].Key != "a" || *out.TagSet[0].Value != "1 ü" {
			t.Errorf("tags of %s: %+v %v", b, out, err)
		}
		if _, err := c.DeleteBucketTagging(t.Context(), &s3.DeleteBucketTaggingInput{Bucket: aws.String(b)}); err != nil {
			t.Error(err)
		}
		_, err = c.GetBucketTagging(t.Context(), &s3.GetBucketTaggingInput{Bucket: aws.String(b)})
		wantCode(t, err, "NoSuchTagSet", 404)
	}
	_, err := c.PutBucketTagging(t.Context(), &s3.PutBucketTaggingInput{Bucket: aws.String(bucket), Tagging: &types.Tagging{TagSet: []types.Tag{{Key: aws.String("a!"), Value: aws.String("")}}}})
	wantCode(t, err, "InvalidTag", 400)

	acl, err := c.GetBucketAcl(t.Context(), &s3.GetBucketAclInput{Bucket: aws.String(bucket)})
	if err != nil || len(acl.Grants) != 1 || acl.Grants[0].Permission != types.PermissionFullControl || *acl.Grants[0].Grantee.ID != *acl.Owner.ID {
		t.Errorf("ACL: %+v %v", acl, err)
	}
	owner, err := c.GetBucketOwnershipControls(t.Context(), &s3.GetBucketOwnershipControlsInput{Bucket: aws.String(bucket)})
	if err != nil || owner.OwnershipControls.Rules[0].ObjectOwnership != types.ObjectOwnershipBucketOwnerEnforced {
		t.Errorf("ownership: %+v %v", owner, err)
	}
	// Who names the owner right is served.
	if _, err := c.HeadBucket(t.Context(), &s3.HeadBucketInput{Bucket: aws.String(bucket), ExpectedBucketOwner: acl.Owner.ID}); err != nil {
		t.Error(err)
	}
	_, err = c.GetBucketCors(t.Context(), &s3.GetBucketCorsInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "NoSuchCORSConfiguration", 404)
	_, err = c.GetBucketWebsite(t.Context(), &s3.GetBucketWebsiteInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "NoSuchWebsiteConfiguration", 404)
	_, err = c.GetObjectLockConfiguration(t.Context(), &s3.GetObjectLockConfigurationInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "ObjectLockConfigurationNotFoundError", 404)
}

// Every checksum is verified, kept and given back, and GetObjectAttributes shows it.
func TestChecksumAlgorithms(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	object := s.url() + "/" + bucket + "/k"
	body := []byte("hello")
	for _, a := range checksum.Algorithms {
		h := checksum.New(a)
		h.Write(body)
		sum := base64.StdEncoding.EncodeToString(h.Sum(nil))
		if status, code, b := send(t, newSigner().request("PUT", object, body, checksum.Header(a), sum)); status != 200 {
			t.Errorf("%s: %d %s: %s", a, status, code, b)
			continue
		}
		resp, err := http.DefaultClient.Do(newSigner().request("GET", object, nil, "X-Amz-Checksum-Mode", "ENABLED"))
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !bytes.Equal(got, body) || resp.Header.Get(checksum.Header(a)) != sum {
			t.Errorf("%s: %q, %v", a, got, resp.Header)
		}
		status, _, b := send(t, newSigner().request("GET", object+"?attributes=", nil, "X-Amz-Object-Attributes", "Checksum,ObjectSize,StorageClass"))
		if status != 200 || !strings.Contains(string(b), "<Checksum"+a+">"+sum) || !strings.Contains(string(b), "<ObjectSize>5</ObjectSize>") || strings.Contains(string(b), "ETag") {
			t.Errorf("%s: attributes: %d %s", a, status, b)
		}
		h.Write([]byte("!"))
		wrong := base64.StdEncoding.EncodeToString(h.Sum(nil))
		if status, code, _ := send(t, newSigner().request("PUT", object, body, checksum.Header(a), wrong)); status != 400 || code != "BadDigest" {
			t.Errorf("%s: a wrong checksum: %d %s", a, status, code)
		}
	}
	for _, header := range []string{"", "Nothing"} {
		if status, _, _ := send(t, newSigner().request("GET", object+"?attributes=", nil, "X-Amz-Object-Attributes", header)); status != 400 {
			t.Errorf("attributes %q: %d", header, status)
		}
	}
}

// The redirect of a website is kept and never copied.
func TestRedirectLocation(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	put(t, c, "from", []byte("x"), func(in *s3.PutObjectInput) { in.WebsiteRedirectLocation = aws.String("/elsewhere") })
	redirect := func(key string) string {
		out, err := c.HeadObject(t.Context(), &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: &key})
		if err != nil {
			t.Fatal(err)
		}
		return aws.ToString(out.WebsiteRedirectLocation)
	}
	if got := redirect("from"); got != "/elsewhere" {
		t.Errorf("redirect %q", got)
	}
	for to, want := range map[string]string{"plain": "", "other": "https://example.com/"} {
		in := &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: &to, CopySource: aws.String(bucket + "/from")}
		if want != "" {
			in.WebsiteRedirectLocation = &want
		}
		if _, err := c.CopyObject(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if got := redirect(to); got != want {
			t.Errorf("redirect of the copy %s: %q, want %q", to, got, want)
		}
	}
	_, err := c.PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), WebsiteRedirectLocation: aws.String("elsewhere")})
	wantCode(t, err, "InvalidRedirectLocation", 400)
}
