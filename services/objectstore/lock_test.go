package objectstore_test

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const vault = "vault"

// withVault makes a bucket with object lock.
func withVault(t *testing.T, c *s3.Client) {
	t.Helper()
	if _, err := c.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String(vault), ObjectLockEnabledForBucket: aws.Bool(true)}); err != nil {
		t.Fatal(err)
	}
}

// store puts an object into the vault and gives the id of its version.
func store(t *testing.T, c *s3.Client, key string, opts ...func(*s3.PutObjectInput)) string {
	t.Helper()
	in := &s3.PutObjectInput{Bucket: aws.String(vault), Key: &key, Body: bytes.NewReader([]byte(key))}
	for _, o := range opts {
		o(in)
	}
	out, err := c.PutObject(ctx, in)
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	return *out.VersionId
}

func retain(c *s3.Client, key, version string, mode types.ObjectLockRetentionMode, until time.Time, bypass bool) error {
	_, err := c.PutObjectRetention(ctx, &s3.PutObjectRetentionInput{Bucket: aws.String(vault), Key: &key, VersionId: &version, BypassGovernanceRetention: &bypass,
		Retention: &types.ObjectLockRetention{Mode: mode, RetainUntilDate: &until}})
	return err
}

func hold(c *s3.Client, key, version string, on types.ObjectLockLegalHoldStatus) error {
	_, err := c.PutObjectLegalHold(ctx, &s3.PutObjectLegalHoldInput{Bucket: aws.String(vault), Key: &key, VersionId: &version, LegalHold: &types.ObjectLockLegalHold{Status: on}})
	return err
}

func destroy(c *s3.Client, key, version string, bypass bool) error {
	_, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(vault), Key: &key, VersionId: &version, BypassGovernanceRetention: &bypass})
	return err
}

func configureLock(c *s3.Client, bucket string, d *types.DefaultRetention) error {
	l := &types.ObjectLockConfiguration{ObjectLockEnabled: types.ObjectLockEnabledEnabled}
	if d != nil {
		l.Rule = &types.ObjectLockRule{DefaultRetention: d}
	}
	_, err := c.PutObjectLockConfiguration(ctx, &s3.PutObjectLockConfigurationInput{Bucket: &bucket, ObjectLockConfiguration: l})
	return err
}

// A bucket with object lock keeps versions, and keeps doing so. One without gets it when it has them.
func TestLockConfiguration(t *testing.T) {
	c := start(t, testConfig(t.TempDir())).client()
	withVault(t, c)
	v, err := c.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: aws.String(vault)})
	if err != nil || v.Status != types.BucketVersioningStatusEnabled {
		t.Errorf("versioning: %+v %v", v, err)
	}
	version := func(bucket string, status types.BucketVersioningStatus) error {
		_, err := c.PutBucketVersioning(ctx, &s3.PutBucketVersioningInput{Bucket: &bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: status}})
		return err
	}
	wantCode(t, version(vault, types.BucketVersioningStatusSuspended), "InvalidBucketState", 409)
	get := func(bucket string) (*types.ObjectLockConfiguration, error) {
		out, err := c.GetObjectLockConfiguration(ctx, &s3.GetObjectLockConfigurationInput{Bucket: &bucket})
		if err != nil {
			return nil, err
		}
		return out.ObjectLockConfiguration, nil
	}
	if l, err := get(vault); err != nil || l.ObjectLockEnabled != types.ObjectLockEnabledEnabled || l.Rule != nil {
		t.Errorf("configuration: %+v %v", l, err)
	}
	_, err = get(bucket)
	wantCode(t, err, "ObjectLockConfigurationNotFoundError", 404)
	wantCode(t, configureLock(c, bucket, nil), "InvalidBucketState", 409)
	if err := version(bucket, types.BucketVersioningStatusEnabled); err != nil {
		t.Fatal(err)
	}
	if err := configureLock(c, bucket, nil); err != nil {
		t.Error("object lock of a bucket with versions:", err)
	}
	for want, d := range map[string][]types.DefaultRetention{
		"MalformedXML": {{}, {Mode: "GOVERNANCE"}, {Mode: "WEAK", Days: aws.Int32(1)}, {Mode: "GOVERNANCE", Days: aws.Int32(1), Years: aws.Int32(1)}, {Days: aws.Int32(1)}},
		"InvalidArgument": {{Mode: "GOVERNANCE", Days: aws.Int32(0)}, {Mode: "COMPLIANCE", Years: aws.Int32(-1)}, {Mode: "GOVERNANCE", Days: aws.Int32(36501)},
			{Mode: "GOVERNANCE", Years: aws.Int32(101)}},
	} {
		for _, d := range d {
			wantCode(t, configureLock(c, vault, &d), want, 400)
		}
	}
	if err := configureLock(c, vault, &types.DefaultRetention{Mode: "COMPLIANCE", Years: aws.Int32(2)}); err != nil {
		t.Fatal(err)
	}
	if l, err := get(vault); err != nil || l.Rule == nil || *l.Rule.DefaultRetention.Years != 2 || l.Rule.DefaultRetention.Mode != "COMPLIANCE" {
		t.Errorf("configuration: %+v %v", l, err)
	}
}

// The default retention is that of every object that is made and asks for none: by PUT, by a copy, by an upload, also one
// that was begun before. A copy has not the lock of its source.
func TestDefaultRetention(t *testing.T) {
	c := start(t, testConfig(t.TempDir())).client()
	withVault(t, c)
	begun, err := c.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: aws.String(vault), Key: aws.String("upload")})
	if err != nil {
		t.Fatal(err)
	}
	earlier := time.Now()
	before := store(t, c, "before")
	if err := hold(c, "before", before, "ON"); err != nil {
		t.Fatal(err)
	}
	if err := configureLock(c, vault, &types.DefaultRetention{Mode: "GOVERNANCE", Days: aws.Int32(3)}); err != nil {
		t.Fatal(err)
	}
	store(t, c, "put")
	store(t, c, "held", func(in *s3.PutObjectInput) { in.ObjectLockLegalHoldStatus = "ON" })
	later := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	store(t, c, "own", func(in *s3.PutObjectInput) { in.ObjectLockMode, in.ObjectLockRetainUntilDate = "COMPLIANCE", &later })
	if _, err := c.CopyObject(ctx, &s3.CopyObjectInput{Bucket: aws.String(vault), Key: aws.String("copy"), CopySource: aws.String(vault + "/own")}); err != nil {
		t.Fatal(err)
	}
	part, err := c.UploadPart(ctx, &s3.UploadPartInput{Bucket: aws.String(vault), Key: aws.String("upload"), UploadId: begun.UploadId, PartNumber: aws.Int32(1), Body: bytes.NewReader(nil)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CompleteMultipartUpload(ctx, &s3.CompleteMultipartUploadInput{Bucket: aws.String(vault), Key: aws.String("upload"), UploadId: begun.UploadId,
		MultipartUpload: &types.CompletedMultipartUpload{Parts: []types.CompletedPart{{ETag: part.ETag, PartNumber: aws.Int32(1)}}}}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]struct {
		mode types.ObjectLockMode
		hold types.ObjectLockLegalHoldStatus
	}{"before": {"", "ON"}, "put": {"GOVERNANCE", ""}, "held": {"GOVERNANCE", "ON"}, "own": {"COMPLIANCE", ""}, "copy": {"GOVERNANCE", ""}, "upload": {"GOVERNANCE", ""}} {
		h, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(vault), Key: &key})
		if err != nil {
			t.Fatal(err)
		}
		if h.ObjectLockMode != want.mode || h.ObjectLockLegalHoldStatus != want.hold {
			t.Errorf("%s: mode %q, hold %q; want %+v", key, h.ObjectLockMode, h.ObjectLockLegalHoldStatus, want)
		}
		if want.mode == "GOVERNANCE" && (h.ObjectLockRetainUntilDate.Before(earlier.AddDate(0, 0, 3).Truncate(time.Second)) || h.ObjectLockRetainUntilDate.After(time.Now().AddDate(0, 0, 3))) {
			t.Errorf("%s is retained until %v", key, h.ObjectLockRetainUntilDate)
		}
		if key == "own" && !h.ObjectLockRetainUntilDate.Equal(later) {
			t.Errorf("own is retained until %v, not %v", h.ObjectLockRetainUntilDate, later)
		}
		if key == "upload" {
			continue
		}
		_, err = c.GetObjectRetention(ctx, &s3.GetObjectRetentionInput{Bucket: aws.String(vault), Key: &key})
		if (want.mode == "") != (err != nil) {
			t.Errorf("%s: retention: %v", key, err)
		}
	}
}

// A lock protects its version from everybody, and nothing else: the object can be overwritten and gets delete markers.
func TestLockedVersions(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	c := s.client()
	withVault(t, c)
	until := time.Now().Add(time.Hour)
	held, governed, compliant := store(t, c, "held"), store(t, c, "governed"), store(t, c, "compliant")
	for _, err := range []error{hold(c, "held", held, "ON"), retain(c, "governed", governed, "GOVERNANCE", until, false), retain(c, "compliant", compliant, "COMPLIANCE", until, false)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for key, version := range map[string]string{"held": held, "governed": governed, "compliant": compliant} {
		store(t, c, key) // another version
		if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(vault), Key: &key}); err != nil {
			t.Error("a delete marker:", err)
		}
		wantCode(t, destroy(c, key, version, false), "AccessDenied", 403)
		out, err := c.DeleteObjects(ctx, &s3.DeleteObjectsInput{Bucket: aws.String(vault), Delete: &types.Delete{Objects: []types.ObjectIdentifier{{Key: &key, VersionId: &version}}}})
		if err != nil || len(out.Errors) != 1 || *out.Errors[0].Code != "AccessDenied" || len(out.Deleted) != 0 {
			t.Errorf("%s with others: %+v %v", key, out, err)
		}
		if key != "governed" {
			wantCode(t, destroy(c, key, version, true), "AccessDenied", 403)
		}
		got, err := c.GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(vault), Key: &key, VersionId: &version})
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
	}
	_, err := c.DeleteBucket(ctx, &s3.DeleteBucketInput{Bucket: aws.String(vault)})
	wantCode(t, err, "BucketNotEmpty", 409)
	// What makes a retention weaker.
	wantCode(t, retain(c, "compliant", compliant, "COMPLIANCE", until.Add(-time.Minute), true), "AccessDenied", 403)
	wantCode(t, retain(c, "compliant", compliant, "GOVERNANCE", until.Add(time.Hour), true), "AccessDenied", 403)
	wantCode(t, retain(c, "governed", governed, "GOVERNANCE", until.Add(-time.Minute), false), "AccessDenied", 403)
	wantCode(t, retain(c, "governed", governed, "COMPLIANCE", until.Add(time.Hour), false), "AccessDenied", 403)
	if err := retain(c, "compliant", compliant, "COMPLIANCE", until.Add(time.Hour), false); err != nil {
		t.Error("longer:", err)
	}
	s.stop()
	c = start(t, cfg).client()
	wantCode(t, destroy(c, "held", held, true), "AccessDenied", 403)
	if err := hold(c, "held", held, "OFF"); err != nil {
		t.Fatal(err)
	}
	if h, err := c.GetObjectLegalHold(ctx, &s3.GetObjectLegalHoldInput{Bucket: aws.String(vault), Key: aws.String("held"), VersionId: &held}); err != nil || h.LegalHold.Status != "OFF" {
		t.Errorf("%+v %v", h, err)
	}
	for _, err := range []error{destroy(c, "held", held, false), destroy(c, "governed", governed, true)} {
		if err != nil {
			t.Error(err)
		}
	}
	wantCode(t, destroy(c, "compliant", compliant, true), "AccessDenied", 403)
}

// A retention ends by itself, and not before.
func TestRetentionEnds(t *testing.T) {
	began := time.Now()
	var passed atomic.Int64 // the store's clock stands still, and is moved by hand
	c := startWith(t, testConfig(t.TempDir()), objectstore.Deps{Now: func() time.Time { return began.Add(time.Duration(passed.Load())) }}).client()
	withVault(t, c)
	until := began.Add(5 * time.Minute).UTC().Truncate(time.Millisecond)
	version := store(t, c, "k", func(in *s3.PutObjectInput) { in.ObjectLockMode, in.ObjectLockRetainUntilDate = "COMPLIANCE", &until })
	for _, at := range []time.Duration{0, 4 * time.Minute, until.Sub(began) - time.Millisecond} {
		passed.Store(int64(at))
		wantCode(t, destroy(c, "k", version, true), "AccessDenied", 403)
	}
	passed.Store(int64(5*time.Minute + time.Millisecond))
	if err := destroy(c, "k", version, true); err != nil {
		t.Errorf("its retention is over: %v", err)
	}
}

// Locks and deletes of the same version race. Never do both succeed.
func TestLockAgainstDelete(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c, other := s.client(), s.client()
	withVault(t, c)
	for i := range 60 {
		key := fmt.Sprint(i)
		version := store(t, c, key)
		var race sync.WaitGroup
		var lock, remove error
		race.Go(func() {
			if i%2 == 0 {
				lock = hold(c, key, version, "ON")
			} else {
				lock = retain(c, key, version, "COMPLIANCE", time.Now().Add(time.Hour), false)
			}
		})
		race.Go(func() { remove = destroy(other, key, version, true) })
		race.Wait()
		_, err := c.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(vault), Key: &key, VersionId: &version})
		if (lock == nil) != (remove != nil) || (lock == nil) != (err == nil) {
			t.Fatalf("lock: %v, delete: %v, and then: %v", lock, remove, err)
		}
	}
}

// What cannot be a lock is refused, and nothing is written.
func TestLocksThatAreRefused(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	c := s.client()
	withVault(t, c)
	g := newSigner()
	date := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for _, x := range []struct {
		bucket string
		header []string
		code   string
	}{
		{vault, []string{"X-Amz-Object-Lock-Mode", "GOVERNANCE"}, "InvalidArgument"},
		{vault, []string{"X-Amz-Object-Lock-Retain-Until-Date", date}, "InvalidArgument"},
		{vault, []string{"X-Amz-Object-Lock-Mode", "governance", "X-Amz-Object-Lock-Retain-Until-Date", date}, "InvalidArgument"},
		{vault, []string{"X-Amz-Object-Lock-Mode", "GOVERNANCE", "X-Amz-Object-Lock-Retain-Until-Date", "tomorrow"}, "InvalidArgument"},
		{vault, []string{"X-Amz-Object-Lock-Mode", "GOVERNANCE", "X-Amz-Object-Lock-Retain-Until-Date", "2020-01-01T00:00:00Z"}, "InvalidArgument"},
		{vault, []string{"X-Amz-Object-Lock-Mode", "GOVERNANCE", "X-Amz-Object-Lock-Retain-Until-Date", "9999-12-31T23:59:59-01:00"}, "InvalidArgument"},
		{vault, []string{"X-Amz-Object-Lock-Legal-Hold", "yes"}, "InvalidArgument"},
		{bucket, []string{"X-Amz-Object-Lock-Legal-Hold", "ON"}, "InvalidRequest"},
		{bucket, []string{"X-Amz-Object-Lock-Mode", "COMPLIANCE", "X-Amz-Object-Lock-Retain-Until-Date", date}, "InvalidRequest"},
	} {
		if status, code, b := send(t, g.request("PUT", s.url()+"/"+x.bucket+"/k", []byte("x"), x.header...)); status != 400 || code != x.code {
			t.Errorf("%s %v: %d %s: %s", x.bucket, x.header, status, code, b)
		}
		if status, code, b := send(t, g.request("POST", s.url()+"/"+x.bucket+"/k?uploads=", nil, x.header...)); status != 400 || code != x.code {
			t.Errorf("upload to %s %v: %d %s: %s", x.bucket, x.header, status, code, b)
		}
		if status, _, _ := send(t, g.request("HEAD", s.url()+"/"+x.bucket+"/k", nil)); status != 404 {
			t.Fatalf("%v was written", x.header)
		}
	}
	// Headers of a lock where nothing reads them would be a promise that nobody keeps.
	if status, code, _ := send(t, g.request("GET", s.url()+"/"+vault+"/k", nil, "X-Amz-Object-Lock-Legal-Hold", "ON")); status != 501 || code != "NotImplemented" {
		t.Errorf("a lock on GET: %d %s", status, code)
	}
	version := store(t, c, "k")
	for body, code := range map[string]string{
		"":             "MalformedXML",
		"<LegalHold/>": "MalformedXML",
		"<Retention/>": "MalformedXML",
		"<LegalHold><Status>on</Status></LegalHold>": "MalformedXML",
	} {
		if status, got, b := send(t, g.request("PUT", s.url()+"/"+vault+"/k?legal-hold=", []byte(body))); status != 400 || got != code {
			t.Errorf("legal hold %q: %d %s: %s", body, status, got, b)
		}
	}
	for body, code := range map[string]string{
		"": "MalformedXML",
		"<Retention><Mode>GOVERNANCE</Mode></Retention>":                                                        "MalformedXML",
		"<Retention><Mode>FOREVER</Mode><RetainUntilDate>" + date + "</RetainUntilDate></Retention>":            "MalformedXML",
		"<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2020-01-01T00:00:00Z</RetainUntilDate></Retention>": "InvalidArgument",
	} {
		if status, got, b := send(t, g.request("PUT", s.url()+"/"+vault+"/k?retention=", []byte(body))); status != 400 || got != code {
			t.Errorf("retention %q: %d %s: %s", body, status, got, b)
		}
	}
	_, err := c.GetObjectRetention(ctx, &s3.GetObjectRetentionInput{Bucket: aws.String(vault), Key: aws.String("k")})
	wantCode(t, err, "NoSuchObjectLockConfiguration", 404)
	_, err = c.GetObjectLegalHold(ctx, &s3.GetObjectLegalHoldInput{Bucket: aws.String(vault), Key: aws.String("k")})
	wantCode(t, err, "NoSuchObjectLockConfiguration", 404)
	put(t, c, "plain", nil)
	_, err = c.GetObjectRetention(ctx, &s3.GetObjectRetentionInput{Bucket: aws.String(bucket), Key: aws.String("plain")})
	wantCode(t, err, "InvalidRequest", 400)
	// An empty retention takes a governance one back, with bypass.
	if err := retain(c, "k", version, "GOVERNANCE", time.Now().Add(time.Hour), false); err != nil {
		t.Fatal(err)
	}
	if status, _, _ := send(t, g.request("PUT", s.url()+"/"+vault+"/k?retention=", []byte("<Retention/>"))); status != http.StatusForbidden {
		t.Errorf("a retention taken back without bypass: %d", status)
	}
	if status, _, b := send(t, g.request("PUT", s.url()+"/"+vault+"/k?retention=", []byte("<Retention/>"), "X-Amz-Bypass-Governance-Retention", "true")); status != http.StatusOK {
		t.Errorf("a retention taken back: %d %s", status, b)
	}
}

// What is misspelt is refused: the rest of it would protect less than was meant.
func TestElementsThatAreNotKnown(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	withVault(t, s.client())
	store(t, s.client(), "k")
	for _, x := range []struct{ path, body string }{
		{"?publicAccessBlock=", "<PublicAccessBlockConfiguration><BlockPublicAcl>true</BlockPublicAcl></PublicAccessBlockConfiguration>"},
		{"?object-lock=", "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rules/></ObjectLockConfiguration>"},
		{"?object-lock=", "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention><Mode>GOVERNANCE</Mode><Days>1</Days><Hold/></DefaultRetention></Rule></ObjectLockConfiguration>"},
		{"/k?retention=", "<Retention><mode>COMPLIANCE</mode></Retention>"},
	} {
		if st, code, b := send(t, newSigner().request("PUT", s.url()+"/"+vault+x.path, []byte(x.body), "X-Amz-Bypass-Governance-Retention", "true")); st != 400 || code != "MalformedXML" {
			t.Errorf("%s: %d %s %s", x.body, st, code, b)
		}
	}
}

// Locks need actions of their own, and so does bypassing one; who may not read a lock is not shown it.
func TestPermissionsOfLocks(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Users = append(cfg.Users, objectstore.User{Name: "writer", AccessKeyID: "WRITER", Secret: "writer-secret",
		Policy: `{"Statement":[{"Effect":"Allow","Action":["s3:PutObject","s3:GetObject","s3:GetObjectVersion","s3:DeleteObject","s3:DeleteObjectVersion"],"Resource":"arn:aws:s3:::vault/*"}]}`})
	s := start(t, cfg)
	c, writer := s.client(), sdk(s.url(), "WRITER", "writer-secret")
	withVault(t, c)
	until := time.Now().Add(time.Hour)
	_, err := writer.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(vault), Key: aws.String("k"), ObjectLockMode: "GOVERNANCE", ObjectLockRetainUntilDate: &until})
	wantCode(t, err, "AccessDenied", 403)
	_, err = writer.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(vault), Key: aws.String("k"), ObjectLockLegalHoldStatus: "ON"})
	wantCode(t, err, "AccessDenied", 403)
	version := store(t, writer, "k")
	wantCode(t, retain(writer, "k", version, "GOVERNANCE", until, false), "AccessDenied", 403)
	wantCode(t, hold(writer, "k", version, "ON"), "AccessDenied", 403)
	wantCode(t, configureLock(writer, vault, nil), "AccessDenied", 403)
	if err := retain(c, "k", version, "GOVERNANCE", until, false); err != nil {
		t.Fatal(err)
	}
	h, err := writer.HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(vault), Key: aws.String("k")})
	if err != nil || h.ObjectLockMode != "" {
		t.Errorf("shown to who may not know: %+v %v", h, err)
	}
	wantCode(t, destroy(writer, "k", version, true), "AccessDenied", 403)
	free := store(t, writer, "k")
	if err := destroy(writer, "k", free, true); err != nil {
		t.Error("bypass of nothing:", err)
	}
	if err := destroy(c, "k", version, true); err != nil {
		t.Error(err)
	}
}

// Policies can ask for what a lock would be, in headers and in bodies.
func TestPoliciesOfLocks(t *testing.T) {
	c := start(t, testConfig(t.TempDir())).client()
	withVault(t, c)
	version := store(t, c, "k")
	if _, err := c.PutBucketPolicy(ctx, &s3.PutBucketPolicyInput{Bucket: aws.String(vault), Policy: aws.String(`{"Version":"2012-10-17","Statement":[
		{"Effect":"Deny","Principal":"*","Action":["s3:PutObject","s3:PutObjectRetention"],"Resource":"arn:aws:s3:::vault/*","Condition":{"NumericGreaterThan":{"s3:object-lock-remaining-retention-days":"10"}}},
		{"Effect":"Deny","Principal":"*","Action":["s3:PutObject","s3:PutObjectRetention"],"Resource":"arn:aws:s3:::vault/*","Condition":{"StringEquals":{"s3:object-lock-mode":"COMPLIANCE"}}},
		{"Effect":"Deny","Principal":"*","Action":["s3:PutObject","s3:PutObjectLegalHold"],"Resource":"arn:aws:s3:::vault/*","Condition":{"StringEquals":{"s3:object-lock-legal-hold":"ON"}}}]}`)}); err != nil {
		t.Fatal(err)
	}
	soon, late := time.Now().AddDate(0, 0, 9), time.Now().AddDate(0, 0, 10).Add(time.Hour)
	write := func(mode types.ObjectLockMode, until *time.Time, hold types.ObjectLockLegalHoldStatus) error {
		_, err := c.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(vault), Key: aws.String("k"), ObjectLockMode: mode, ObjectLockRetainUntilDate: until, ObjectLockLegalHoldStatus: hold})
		return err
	}
	// Further away than a duration can say.
	never := time.Date(9998, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, err := range []error{
		write("GOVERNANCE", &never, ""), retain(c, "k", version, "GOVERNANCE", never, false),
		write("GOVERNANCE", &late, ""), write("COMPLIANCE", &soon, ""), write("", nil, "ON"), hold(c, "k", version, "ON"),
		retain(c, "k", version, "GOVERNANCE", late, false), retain(c, "k", version, "COMPLIANCE", soon, false),
	} {
		wantCode(t, err, "AccessDenied", 403)
	}
	for _, err := range []error{write("GOVERNANCE", &soon, ""), write("", nil, "OFF"), write("", nil, ""), hold(c, "k", version, "OFF"), retain(c, "k", version, "GOVERNANCE", soon, false)} {
		if err != nil {
			t.Error(err)
		}
	}
}
