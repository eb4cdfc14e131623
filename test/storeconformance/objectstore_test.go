// Package storeconformance runs the conformance suite and the start-up probe with the
// S3 back end over the embedded object store, through its HTTP face.
package storeconformance

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
	"lightmetrics.dev/lightmetrics/services/objectstore/objectstoretest"
)

const (
	bucket = "authority"
	admin  = "admin-key"
	secret = "secret-of-this-test"
	// collectorKey has what a collector may do: conditional writes, and no deletes, of records.
	collectorKey = "collector-key"
)

// collectorPolicy is that of a collector.
func collectorPolicy(t *testing.T) string {
	t.Helper()
	b, err := bucketpolicy.User(bucketpolicy.Options{Bucket: bucket}, bucketpolicy.Ingest)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// start serves an empty bucket until the test ends.
func start(t *testing.T) string {
	t.Helper()
	cfg := objectstore.DefaultConfig()
	cfg.Listen, cfg.AdminListen, cfg.Dir, cfg.Buckets = "127.0.0.1:0", "", t.TempDir(), []string{bucket}
	cfg.Users = []objectstore.User{
		{Name: "admin", AccessKeyID: admin, Secret: secret},
		{Name: "collector", AccessKeyID: collectorKey, Secret: secret, Policy: collectorPolicy(t)},
	}
	for _, r := range bucketpolicy.Roles {
		policy, err := bucketpolicy.User(bucketpolicy.Options{Bucket: bucket}, r)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Users = append(cfg.Users, objectstore.User{Name: string(r), AccessKeyID: string(r), Secret: secret, Policy: string(policy)})
	}
	return "http://" + objectstoretest.Start(t, cfg).Addr()
}

func open(t *testing.T, endpoint, key, prefix string) *s3.Store {
	t.Helper()
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.PathStyle, cfg.Prefix = endpoint, bucket, true, prefix
	cfg.AccessKeyID, cfg.SecretAccessKey = key, config.Secret(secret)
	s, err := s3.New(t.Context(), cfg, s3.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestObjectStoreConforms(t *testing.T) {
	endpoint := start(t)
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) objstore.Store {
		return open(t, endpoint, admin, fmt.Sprintf("case %d+/", n.Add(1)))
	}, storetest.Features{})
}

func TestObjectStoreQualifies(t *testing.T) {
	s := open(t, start(t), collectorKey, "")
	report, err := qualify.Run(t.Context(), s, qualify.Options{RunID: "embedded", Strict: true})
	var table strings.Builder
	report.Table(&table)
	t.Logf("\n%s", table.String())
	if err != nil {
		t.Error(err)
	}
}

// TestRolesOverObjectStore: each role's credentials do what its service needs, and every other request
// fails, for each kind of request and each family of keys.
func TestRolesOverObjectStore(t *testing.T) {
	endpoint := start(t)
	provider, err := bucketpolicy.ProviderOf("embedded")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range bucketpolicy.Roles {
		report, err := qualify.Role(t.Context(), open(t, endpoint, string(r), ""), provider, []bucketpolicy.Role{r}, qualify.Options{RunID: "embedded"})
		if err != nil {
			t.Errorf("%s: %v", r, err)
		}
		if want := len(bucketpolicy.Families) * len(bucketpolicy.Ops); len(report.Rows) != want {
			t.Errorf("%s: %d rows, want %d", r, len(report.Rows), want)
		}
		// Whoever has another role's credentials is found, too.
		for _, other := range bucketpolicy.Roles {
			if other == r {
				continue
			}
			if _, err := qualify.Role(t.Context(), open(t, endpoint, string(other), ""), provider, []bucketpolicy.Role{r}, qualify.Options{RunID: "embedded"}); err == nil {
				t.Errorf("credentials of %s pass for %s", other, r)
			}
		}
	}
}

// TestNobodyGoesAroundTheBucketsPolicy: a user without a policy of its own meets the bucket's: no copy
// comes onto a record, and only those who are named delete frames.
func TestNobodyGoesAroundTheBucketsPolicy(t *testing.T) {
	endpoint := start(t)
	policy, err := bucketpolicy.Bucket(bucketpolicy.Options{Bucket: bucket, Principals: map[bucketpolicy.Role][]string{
		bucketpolicy.Reconciler: {"arn:aws:iam::000000000000:user/reconciler"}, bucketpolicy.GC: {"arn:aws:iam::000000000000:user/gc"}}})
	if err != nil {
		t.Fatal(err)
	}
	client := awss3.New(awss3.Options{BaseEndpoint: &endpoint, Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(admin, secret, "")})
	if _, err := client.PutBucketPolicy(t.Context(), &awss3.PutBucketPolicyInput{Bucket: aws.String(bucket), Policy: aws.String(string(policy))}); err != nil {
		t.Fatalf("%v\n%s", err, policy)
	}
	all := open(t, endpoint, admin, "")
	if _, err := all.Create(t.Context(), "probe/v1/source", []byte("x"), objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	const frame = "raw-blobs/v1/sha256/aa/bb/x"
	for _, key := range []string{"accepted/v1/a", "quarantine/v1/identity-conflict/a", "boots/v1/a", frame} {
		_, err := client.CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: aws.String(bucket), Key: &key, CopySource: aws.String(bucket + "/probe/v1/source"), IfNoneMatch: aws.String("*")})
		if err == nil || !strings.Contains(err.Error(), "AccessDenied") {
			t.Errorf("a copy onto %s: %v", key, err)
		}
		if _, err := all.Create(t.Context(), key, []byte("x"), objstore.PutOptions{}); err != nil {
			t.Errorf("a create of %s: %v", key, err)
		}
		if _, err := all.Put(t.Context(), key, []byte("y"), objstore.PutOptions{}); !errors.Is(err, objstore.ErrDenied) {
			t.Errorf("a put of %s: %v", key, err)
		}
		if err := all.Delete(t.Context(), key); !errors.Is(err, objstore.ErrDenied) {
			t.Errorf("a delete of %s: %v", key, err)
		}
	}
	if err := open(t, endpoint, "gc", "").Delete(t.Context(), frame); err != nil {
		t.Errorf("a delete of a frame by gc: %v", err)
	}
	// The settings are told to operators alone.
	for key, want := range map[string]qualify.Status{"operator": qualify.Pass, collectorKey: qualify.Skipped} {
		report, _ := qualify.Run(t.Context(), open(t, endpoint, key, ""), qualify.Options{RunID: "settings", Strict: true})
		seen := 0
		for _, row := range report.Rows {
			if strings.HasPrefix(row.Check, "settings: ") && row.Status == want {
				seen++
			}
		}
		if seen != 2 {
			t.Errorf("%s: %+v", key, report.Rows)
		}
	}
}
