// Package storeconformance runs the conformance suite and the start-up probe with the
// S3 back end over the embedded object store, through its HTTP face.
package storeconformance

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/bucketpolicy"
	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const (
	bucket = "authority"
	admin  = "admin-key"
	secret = "secret-of-this-test"
	// collectorKey has what a collector may do: conditional writes, and no deletes, of records.
	collectorKey = "collector-key"
)

// collectorPolicy is that of a user who is no reconciler.
func collectorPolicy(t *testing.T) string {
	t.Helper()
	b, err := bucketpolicy.User(bucket, false)
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
	svc, err := objectstore.New(cfg, objectstore.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	select {
	case <-svc.Ready():
	case err := <-ended:
		t.Fatalf("object store: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("object store ended: %v", err)
		}
	})
	return "http://" + svc.Addr()
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
