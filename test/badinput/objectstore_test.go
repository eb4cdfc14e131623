package badinput

import (
	"context"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const (
	accessKey = "AKBADINPUT"
	secretKey = "bad-input-secret-0123"
	bucket    = "bucket-one"
)

// embedded is a running object store.
type embedded struct{ *objectstore.Service }

func startObjectStore(t testing.TB) *embedded {
	t.Helper()
	cfg := objectstore.DefaultConfig()
	cfg.Dir, cfg.Listen, cfg.AdminListen = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0"
	cfg.MaxObject = 8 << 20
	cfg.Users = []objectstore.User{{Name: "tester", AccessKeyID: accessKey, Secret: config.Secret(secretKey)},
		{Name: "reader", AccessKeyID: "AKREADER", Secret: config.Secret(secretKey),
			Policy: `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::` + bucket + `/*"}]}`}}
	cfg.Buckets = []string{bucket}
	s, err := objectstore.New(cfg, objectstore.Deps{Telemetry: quietTelemetry()})
	if err != nil {
		t.Fatal(err)
	}
	runService(t, s.Run, s.Ready())
	return &embedded{s}
}

// open gives the bucket as the services see it.
func (e *embedded) open(t testing.TB) objstore.Store {
	t.Helper()
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.PathStyle = "http://"+e.Addr(), bucket, true
	cfg.AccessKeyID, cfg.SecretAccessKey = accessKey, config.Secret(secretKey)
	s, err := s3.New(context.Background(), cfg, s3.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}
