package objectstore_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const openPolicy = `{"Statement":[{"Effect":"Allow","Principal":"*","Action":["s3:GetObject","s3:PutObject"],"Resource":"arn:aws:s3:::bucket-one/open/*"}]}`

// unsigned sends a request without a signature.
func unsigned(t *testing.T, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	status, code, _ := send(t, r)
	return status, code
}

func setPolicy(t *testing.T, c *s3.Client, text string) error {
	t.Helper()
	_, err := c.PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: aws.String(bucket), Policy: aws.String(text)})
	return err
}

// Nobody may do anything, unless a policy allows everybody just that.
func TestAnonymousRequestsNeedAPolicy(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c, base := s.client(), s.url()+"/"+bucket
	put(t, c, "open/a", []byte("open"))
	put(t, c, "closed/a", []byte("closed"))
	type try struct {
		method, path string
		before, open int
	}
	tries := []try{
		{"GET", "/open/a", 403, 200}, {"HEAD", "/open/a", 403, 200}, {"GET", "/closed/a", 403, 403}, {"GET", "/open/absent", 403, 403},
		{"PUT", "/open/b", 403, 200}, {"PUT", "/closed/b", 403, 403}, {"DELETE", "/open/a", 403, 403},
		{"GET", "", 403, 403}, {"GET", "?policy=", 403, 403}, {"PUT", "?policy=", 403, 403}, {"GET", "?acl=", 403, 403},
		{"PUT", "?acl=", 403, 403}, {"PUT", "?cors=", 403, 403}, {"DELETE", "", 403, 403}, {"PUT", "?publicAccessBlock=", 403, 403},
		{"POST", "/open/c?uploads=", 403, 403}, {"GET", "/open/a?response-content-type=text/html", 400, 400},
	}
	check := func(when string, want func(try) int) {
		for _, x := range tries {
			if st, code := unsigned(t, x.method, base+x.path, "body"); st != want(x) {
				t.Errorf("%s: %s %s: %d %s, want %d", when, x.method, x.path, st, code, want(x))
			}
		}
		if st, _ := unsigned(t, "GET", s.url()+"/", ""); st != 403 {
			t.Errorf("%s: the list of buckets: %d", when, st)
		}
	}
	before := func(x try) int { return x.before }
	check("no policy", before)
	if err := setPolicy(t, c, openPolicy); err != nil {
		t.Fatal(err)
	}
	check("a policy", func(x try) int { return x.open })
	if st, code := unsigned(t, "PUT", base+"/open/b", "", "X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"); st != 400 {
		t.Errorf("signed chunks of nobody: %d %s", st, code)
	}
	if st, code := unsigned(t, "PUT", base+"/open/b", "", "X-Amz-Copy-Source", "/"+bucket+"/open/a"); st != 403 {
		t.Errorf("a copy by nobody: %d %s", st, code)
	}
	if st, code := unsigned(t, "PUT", base+"/open/b", "abc", "X-Amz-Content-Sha256", strings.Repeat("0", 64)); st != 400 || code != "XAmzContentSHA256Mismatch" {
		t.Errorf("a wrong hash: %d %s", st, code)
	}
	// Half a signature is none, and is not nobody's.
	if st, code := unsigned(t, "GET", base+"/open/a?X-Amz-Signature=00", ""); st == 200 {
		t.Errorf("half a signature: %d %s", st, code)
	}
	out, err := c.GetBucketPolicyStatus(ctx, &s3.GetBucketPolicyStatusInput{Bucket: aws.String(bucket)})
	if err != nil || !aws.ToBool(out.PolicyStatus.IsPublic) {
		t.Errorf("the status of the policy: %v %v", out, err)
	}
	// A deny wins.
	if err := setPolicy(t, c, strings.TrimSuffix(openPolicy, "]}")+`,{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket-one/*"}]}`); err != nil {
		t.Fatal(err)
	}
	if st, _ := unsigned(t, "GET", base+"/open/a", ""); st != 403 {
		t.Errorf("denied: %d", st)
	}
	if _, err := c.DeleteBucketPolicy(ctx, &s3.DeleteBucketPolicyInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatal(err)
	}
	check("no policy any more", before)
}

// A public access block of the bucket, or of the store, wins over policies and ACLs.
func TestPublicAccessBlock(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	put(t, c, "open/a", []byte("open"))
	read := func() int {
		st, _ := unsigned(t, "GET", s.url()+"/"+bucket+"/open/a", "")
		return st
	}
	block := func(b types.PublicAccessBlockConfiguration) {
		t.Helper()
		if _, err := c.PutPublicAccessBlock(ctx, &s3.PutPublicAccessBlockInput{Bucket: aws.String(bucket), PublicAccessBlockConfiguration: &b}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.GetPublicAccessBlock(ctx, &s3.GetPublicAccessBlockInput{Bucket: aws.String(bucket)})
	wantCode(t, err, "NoSuchPublicAccessBlockConfiguration", 404)
	block(types.PublicAccessBlockConfiguration{BlockPublicPolicy: aws.Bool(true)})
	wantCode(t, setPolicy(t, c, openPolicy), "AccessDenied", 403)
	block(types.PublicAccessBlockConfiguration{RestrictPublicBuckets: aws.Bool(true)})
	if err := setPolicy(t, c, openPolicy); err != nil {
		t.Fatal(err)
	}
	if st := read(); st != 403 {
		t.Errorf("a restricted bucket: %d", st)
	}
	out, err := c.GetPublicAccessBlock(ctx, &s3.GetPublicAccessBlockInput{Bucket: aws.String(bucket)})
	if err != nil || !aws.ToBool(out.PublicAccessBlockConfiguration.RestrictPublicBuckets) || aws.ToBool(out.PublicAccessBlockConfiguration.BlockPublicPolicy) {
		t.Errorf("the block: %+v %v", out, err)
	}
	if _, err := c.DeletePublicAccessBlock(ctx, &s3.DeletePublicAccessBlockInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatal(err)
	}
	if st := read(); st != 200 {
		t.Errorf("without the block: %d", st)
	}
	s.stop()
	cfg.BlockPublicAccess = true
	s = start(t, cfg)
	if st := read(); st != 403 {
		t.Errorf("with block_public_access: %d", st)
	}
	wantCode(t, setPolicy(t, s.client(), openPolicy), "AccessDenied", 403)
}

// ACLs count only where the ownership says so; they allow what they name, and nothing else.
func TestBucketACLs(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Users = append(cfg.Users, objectstore.User{Name: "guest", AccessKeyID: "GUEST", Secret: "guest-secret", Policy: `{"Statement":[{"Effect":"Deny","Action":"s3:GetObject","Resource":"arn:aws:s3:::bucket-one/secret"}]}`})
	s := start(t, cfg)
	c, guest := s.client(), sdk(s.url(), "GUEST", "guest-secret")
	put(t, c, "a", []byte("x"))
	setACL := func(in s3.PutBucketAclInput) error {
		in.Bucket = aws.String(bucket)
		_, err := c.PutBucketAcl(ctx, &in)
		return err
	}
	list := func(by *s3.Client) error {
		_, err := by.ListObjectsV2(ctx, &s3.ListObjectsV2Input{Bucket: aws.String(bucket)})
		return err
	}
	write := func(by *s3.Client) error {
		_, err := by.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("by-acl"), Body: strings.NewReader("x")})
		return err
	}
	wantCode(t, setACL(s3.PutBucketAclInput{ACL: types.BucketCannedACLPublicRead}), "AccessControlListNotSupported", 400)
	own := func(o types.ObjectOwnership) error {
		_, err := c.PutBucketOwnershipControls(ctx, &s3.PutBucketOwnershipControlsInput{Bucket: aws.String(bucket),
			OwnershipControls: &types.OwnershipControls{Rules: []types.OwnershipControlsRule{{ObjectOwnership: o}}}})
		return err
	}
	if err := own(types.ObjectOwnershipBucketOwnerPreferred); err != nil {
		t.Fatal(err)
	}
	wantCode(t, list(guest), "AccessDenied", 403)
	if err := setACL(s3.PutBucketAclInput{GrantRead: aws.String(`id="guest"`)}); err != nil {
		t.Fatal(err)
	}
	if err := list(guest); err != nil {
		t.Errorf("with READ: %v", err)
	}
	wantCode(t, write(guest), "AccessDenied", 403)
	if st, _ := unsigned(t, "GET", s.url()+"/"+bucket, ""); st != 403 {
		t.Errorf("nobody lists: %d", st)
	}
	wantCode(t, setACL(s3.PutBucketAclInput{GrantRead: aws.String(`id="stranger"`)}), "InvalidArgument", 400)
	if err := setACL(s3.PutBucketAclInput{AccessControlPolicy: &types.AccessControlPolicy{Owner: &types.Owner{ID: aws.String("tester")},
		Grants: []types.Grant{{Permission: types.PermissionWrite, Grantee: &types.Grantee{Type: types.TypeGroup, URI: aws.String("http://acs.amazonaws.com/groups/global/AuthenticatedUsers")}}}}}); err != nil {
		t.Fatal(err)
	}
	if err := write(guest); err != nil {
		t.Errorf("with WRITE: %v", err)
	}
	wantCode(t, list(guest), "AccessDenied", 403)
	if err := setACL(s3.PutBucketAclInput{ACL: types.BucketCannedACLPublicRead}); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s = start(t, cfg)
	c = s.client()
	if st, _ := unsigned(t, "GET", s.url()+"/"+bucket, ""); st != 200 {
		t.Errorf("nobody lists a public bucket: %d", st)
	}
	if st, _ := unsigned(t, "GET", s.url()+"/"+bucket+"/a", ""); st != 403 {
		t.Errorf("READ of a bucket reads an object: %d", st)
	}
	out, err := c.GetBucketAcl(ctx, &s3.GetBucketAclInput{Bucket: aws.String(bucket)})
	if err != nil || len(out.Grants) != 2 || aws.ToString(out.Grants[0].Grantee.ID) != "tester" || out.Grants[0].Permission != types.PermissionFullControl ||
		aws.ToString(out.Grants[1].Grantee.URI) != "http://acs.amazonaws.com/groups/global/AllUsers" {
		t.Errorf("the ACL: %+v %v", out, err)
	}
	if _, err := c.PutPublicAccessBlock(ctx, &s3.PutPublicAccessBlockInput{Bucket: aws.String(bucket), PublicAccessBlockConfiguration: &types.PublicAccessBlockConfiguration{
		IgnorePublicAcls: aws.Bool(true), BlockPublicAcls: aws.Bool(true)}}); err != nil {
		t.Fatal(err)
	}
	if st, _ := unsigned(t, "GET", s.url()+"/"+bucket, ""); st != 403 {
		t.Errorf("a public ACL that is ignored: %d", st)
	}
	wantCode(t, setACL(s3.PutBucketAclInput{ACL: types.BucketCannedACLPublicReadWrite}), "AccessDenied", 403)
	// Objects have none of their own.
	_, err = c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("b"), ACL: types.ObjectCannedACLPublicRead})
	wantCode(t, err, "NotImplemented", 501)
	for acl, want := range map[types.ObjectCannedACL]string{"private": "", "bucket-owner-full-control": "", "public-read": "NotImplemented"} {
		_, err = c.PutObjectAcl(ctx, &s3.PutObjectAclInput{Bucket: aws.String(bucket), Key: aws.String("a"), ACL: acl})
		if got, _ := code(err); got != want {
			t.Errorf("the ACL %s of an object: %s, want %s", acl, got, want)
		}
	}
	wantCode(t, own(types.ObjectOwnershipBucketOwnerEnforced), "InvalidBucketAclWithObjectOwnership", 400)
	if err := setACL(s3.PutBucketAclInput{ACL: types.BucketCannedACLPrivate}); err != nil {
		t.Fatal(err)
	}
	if err := own(types.ObjectOwnershipBucketOwnerEnforced); err != nil {
		t.Error(err)
	}
}
