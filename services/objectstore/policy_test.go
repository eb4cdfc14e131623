package objectstore_test

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

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
		`{"Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":"arn:aws:s3:::bucket-one/*","Condition":{"IpAddress":{"aws:VpcSourceIp":"1.2.3.4"}}}]}`} {
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
	err = try("accepted/v1/a", nil)
	wantCode(t, err, "AccessDenied", 403)
	if err == nil || !strings.Contains(err.Error(), `User: tester is not authorized to perform: s3:PutObject on resource: "arn:aws:s3:::bucket-one/accepted/v1/a" with an explicit deny in a resource-based policy`) {
		t.Errorf("what denies is not said: %v", err)
	}
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

// Conditions about an object are about the version that a request names, wherever it names it.
func TestConditionsOfVersions(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Users = append(cfg.Users, objectstore.User{Name: "reader", AccessKeyID: "READER", Secret: "reader-secret", Policy: `{"Statement":[
		{"Effect":"Allow","Action":"s3:*","Resource":"*"},
		{"Effect":"Deny","Action":["s3:GetObjectVersion","s3:DeleteObjectVersion"],"Resource":"*","Condition":{"StringEquals":{"s3:ExistingObjectTag/secret":"yes"}}}]}`})
	s := start(t, cfg)
	c, reader := s.client(), sdk(s.url(), "READER", "reader-secret")
	setVersioning(t, c, types.BucketVersioningStatusEnabled)
	secret := aws.ToString(put(t, c, "k", []byte("secret"), func(in *s3.PutObjectInput) { in.Tagging = aws.String("secret=yes") }).VersionId)
	open := aws.ToString(put(t, c, "k", []byte("open")).VersionId)
	tries := map[string]func(version string) error{
		"get": func(version string) error {
			_, err := reader.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("k"), VersionId: &version})
			return err
		},
		"copy": func(version string) error {
			_, err := reader.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("mine"), CopySource: aws.String(bucket + "/k?versionId=" + version)})
			return err
		},
		"delete many": func(version string) error {
			out, err := reader.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: aws.String(bucket), Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: aws.String("k"), VersionId: &version}}}})
			if err == nil && len(out.Errors) == 1 {
				return &smithy.GenericAPIError{Code: aws.ToString(out.Errors[0].Code)}
			}
			return err
		},
	}
	for _, name := range []string{"get", "copy", "delete many"} {
		var denied smithy.APIError
		if err := tries[name](secret); !errors.As(err, &denied) || denied.ErrorCode() != "AccessDenied" {
			t.Errorf("%s of the version that conditions deny: %v", name, err)
		}
		if err := tries[name](open); err != nil {
			t.Errorf("%s of another version: %v", name, err)
		}
	}
	// A policy about one version, which a copy's source names.
	if err := setPolicy(t, c, `{"Statement":[{"Effect":"Deny","Principal":{"AWS":"reader"},"Action":"s3:GetObjectVersion","Resource":"arn:aws:s3:::bucket-one/*","Condition":{"StringEquals":{"s3:VersionId":"`+
		aws.ToString(put(t, c, "k", []byte("third")).VersionId)+`"}}}]}`); err != nil {
		t.Fatal(err)
	}
	out, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(bucket), Key: aws.String("k")})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, tries["copy"](aws.ToString(out.VersionId)), "AccessDenied", 403)
}

// Tags decide what conditions allow: a copy takes them along for who may read those of its source and set those of its target.
func TestCopiedTagsNeedPermissions(t *testing.T) {
	cfg := testConfig(t.TempDir())
	allow := func(actions string) string {
		return `{"Statement":[{"Effect":"Allow","Action":["s3:GetObject","s3:PutObject"` + actions + `],"Resource":"*"}]}`
	}
	for name, actions := range map[string]string{"none": "", "gets": `,"s3:GetObjectTagging"`, "puts": `,"s3:PutObjectTagging"`, "both": `,"s3:GetObjectTagging","s3:PutObjectTagging"`} {
		cfg.Users = append(cfg.Users, objectstore.User{Name: name, AccessKeyID: name, Secret: "copying-secret", Policy: allow(actions)})
	}
	s := start(t, cfg)
	put(t, s.client(), "tagged", []byte("x"), func(in *s3.PutObjectInput) { in.Tagging = aws.String("open=yes") })
	put(t, s.client(), "plain", []byte("x"))
	for _, name := range []string{"none", "gets", "puts", "both"} {
		c := sdk(s.url(), name, "copying-secret")
		try := func(from string, tags types.TaggingDirective) error {
			_, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(bucket), Key: aws.String("copy-" + name), CopySource: aws.String(bucket + "/" + from), TaggingDirective: tags})
			return err
		}
		if err := try("tagged", ""); name == "both" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		} else {
			wantCode(t, err, "AccessDenied", 403)
		}
		for _, err := range []error{try("plain", ""), try("tagged", "REPLACE")} {
			if err != nil {
				t.Errorf("%s copies no tags: %v", name, err)
			}
		}
	}
}

// A policy that asks for the tags of an object whose record cannot be read denies: without their values it would allow what
// it denies by tags. With damage of the body alone the tags are known, and what is not there has none.
func TestTagsThatCannotBeRead(t *testing.T) {
	cfg := testConfig(t.TempDir())
	for name, effect := range map[string]string{"denied": `{"Effect":"Allow","Action":"s3:*","Resource":"*"},{"Effect":"Deny"`, "allowed": `{"Effect":"Allow","Action":"s3:PutObject","Resource":"*"},{"Effect":"Allow"`} {
		cfg.Users = append(cfg.Users, objectstore.User{Name: name, AccessKeyID: strings.ToUpper(name), Secret: "users-secret", Policy: `{"Statement":[` + effect +
			`,"Action":["s3:GetObject","s3:DeleteObject"],"Resource":"*","Condition":{"StringEquals":{"s3:ExistingObjectTag/secret":"` + map[string]string{"denied": "yes", "allowed": "no"}[name] + `"}}}]}`})
	}
	s := start(t, cfg)
	c, denied, allowed := s.client(), sdk(s.url(), "DENIED", "users-secret"), sdk(s.url(), "ALLOWED", "users-secret")
	tagged := func(key, tags string) {
		put(t, c, key, []byte("body of "+key), func(in *s3.PutObjectInput) {
			in.Tagging, in.Metadata = &tags, map[string]string{"of": "metadata of " + key}
		})
	}
	tagged("open", "secret=no")
	tagged("secret", "secret=yes")
	tagged("no-record", "secret=no")
	tagged("no-record-secret", "secret=yes")
	tagged("no-body", "secret=no")
	tagged("no-body-secret", "secret=yes")
	log := filepath.Join(cfg.Dir, "log", "*.seg")
	for _, text := range []string{"metadata of no-record-secret", "metadata of no-record", "body of no-body-secret", "body of no-body"} {
		flipIn(t, log, text)
	}
	read := func(c *s3.Client, key string) error {
		out, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &key})
		if err == nil {
			_, err = io.Copy(io.Discard, out.Body)
			out.Body.Close()
		}
		return err
	}
	for range 2 { // the second time the damage is known
		for _, c := range []*s3.Client{denied, allowed} {
			if err := read(c, "open"); err != nil {
				t.Error(err)
			}
			for _, key := range []string{"secret", "no-record", "no-record-secret", "no-body-secret"} {
				wantCode(t, read(c, key), "AccessDenied", 403)
			}
			wantCode(t, read(c, "no-body"), "ObjectDamaged", 500)
		}
	}
	_, err := denied.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("no-record")})
	wantCode(t, err, "AccessDenied", 403)
	if _, err := denied.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("not-there")}); err != nil {
		t.Errorf("of what is not there: %v", err)
	}
	setVersioning(t, c, types.BucketVersioningStatusEnabled)
	remove(t, c, "open", "")
	if _, err := denied.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("open")}); err != nil {
		t.Errorf("of a delete marker: %v", err)
	}
	wantCode(t, read(c, "no-record"), "ObjectDamaged", 500) // of a user whom no policy concerns
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: aws.String("no-record")}); err != nil {
		t.Error(err)
	}
}
