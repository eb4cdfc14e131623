// Package objectstoretest runs the object store in tests of other packages.
package objectstoretest

import (
	"context"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// Key and Secret are those of the user of Config, who may do everything.
const (
	Key    = "AKTESTSTORE"
	Secret = "secret-of-the-test-store"
)

// Config gives the default settings with a directory, a user and a bucket, on ports that are free and without admin paths.
func Config(t testing.TB, bucket string) objectstore.Config {
	t.Helper()
	c := objectstore.DefaultConfig()
	c.Dir, c.Listen, c.AdminListen = t.TempDir(), "127.0.0.1:0", ""
	c.Users = []objectstore.User{{Name: "test", AccessKeyID: Key, Secret: config.Secret(Secret)}}
	c.Buckets = []string{bucket}
	return c
}

// Start runs a store until the test ends, and gives it when it takes requests.
func Start(t testing.TB, c objectstore.Config) *objectstore.Service {
	t.Helper()
	s, err := objectstore.New(c, objectstore.Deps{Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-ended:
		stop()
		t.Fatalf("the object store ended at its start: %v", err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the object store ended: %v", err)
		}
	})
	return s
}
