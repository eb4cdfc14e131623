package objectstore_test

import (
	"bytes"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const acceptedPolicy = `{"Version":"2012-10-17","Statement":[
 {"Sid":"create only","Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::bucket-one/accepted/v1/*","Condition":{"Null":{"s3:if-none-match":"true"}}},
 {"Effect":"Deny","Principal":{"AWS":"*"},"Action":["s3:DeleteObject"],"Resource":["arn:aws:s3:::bucket-one/accepted/v1/*"]}]}`

func TestPolicies(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Users = append(cfg.Users, objectstore.User{Name: "reader", AccessKeyID: "READER", Secret: "reader-secret",
		Policy: `{"Statement":[{"Effect":"Allow","Action":"s3:Get*","Resource":"arn:aws:s3:::bucket-one/open/*"}]}`})
	s := start(t, cfg)
	c := s.client()
	_, err := c.GetBucketPolicy(ctx, &s3.GetBucketPolicyInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "NoSuchBucketPolicy", 404)
	for _, bad := range []string{`{`, acceptedPolicy + `]`, acceptedPolicy + `{}`, `{"Statement":[]}`, `{"Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::other/*"}]}`,
		`{"Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::bucket-one/*","Condition":{"IpAddress":{"aws:SourceIp":"1.2.3.4"}}}]}`} {
		_, err := c.PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: aws.String(bucket), Policy: &bad})
		wantCode(t, err, "MalformedPolicy", 400)
	}
	if _, err := c.PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: aws.String(bucket), Policy: aws.String(acceptedPolicy)}); err != nil {
		t.Fatal(err)
	}
	try := func(key string, none *string) error {
		_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &key, Body: bytes.NewReader([]byte("x")), IfNoneMatch: none})
		return err
	}
	del := func(key string) error {
		_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: &key})
		return err
	}
	wantCode(t, try("accepted/v1/a", nil), "AccessDenied", 403)
	if err := try("accepted/v1/a", aws.String("*")); err != nil {
		t.Errorf("a conditional put: %v", err)
	}
	wantCode(t, del("accepted/v1/a"), "AccessDenied", 403)
	_, err = c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("accepted/v1/b"), CopySource: aws.String(bucket + "/accepted/v1/a")})
	wantCode(t, err, "AccessDenied", 403)
	if err := try("open/a", nil); err != nil {
		t.Error(err)
	}
	reader := sdk(s.url(), "READER", "reader-secret")
	if got := get(t, reader, "open/a"); string(got) != "x" {
		t.Errorf("the reader got %q", got)
	}
	_, err = reader.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("open/b"), Body: bytes.NewReader(nil)})
	wantCode(t, err, "AccessDenied", 403)
	_, err = reader.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
	wantCode(t, err, "AccessDenied", 403)
	s.stop()
	again := start(t, cfg).client()
	out, err := again.GetBucketPolicy(ctx, &s3.GetBucketPolicyInput{Bucket: aws.String(bucket)})
	if err != nil || *out.Policy != acceptedPolicy {
		t.Errorf("after a restart: %v", err)
	}
	if _, err := again.DeleteBucketPolicy(ctx, &s3.DeleteBucketPolicyInput{Bucket: aws.String(bucket)}); err != nil {
		t.Error(err)
	}
	if _, err := again.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("accepted/v1/a")}); err != nil {
		t.Error(err)
	}
}
