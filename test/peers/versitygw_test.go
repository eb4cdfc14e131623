package peers

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/qualify"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// open gives the bucket of gw under a prefix of its own.
func open(t *testing.T, gw VersityGW, prefix string) *s3.Store {
	t.Helper()
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.PathStyle, cfg.Prefix = gw.Endpoint, Bucket, true, prefix
	cfg.AccessKeyID, cfg.SecretAccessKey = gw.AccessKeyID, config.Secret(gw.SecretAccessKey)
	s, err := s3.New(t.Context(), cfg, s3.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestS3OverVersityGW(t *testing.T) {
	gw := StartVersityGW(t)
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) objstore.Store {
		return open(t, gw, fmt.Sprintf("case %d+/", n.Add(1)))
	}, storetest.Features{NoFileUnderKey: true})
}

func TestVersityGWQualifies(t *testing.T) {
	s := open(t, StartVersityGW(t), "")
	report, err := qualify.Run(t.Context(), s, qualify.Options{RunID: "peer"})
	var table strings.Builder
	report.Table(&table)
	t.Logf("\n%s", table.String())
	if err != nil {
		t.Error(err)
	}
}

func TestWrongCredentialsAndBucket(t *testing.T) {
	gw := StartVersityGW(t)
	s := open(t, gw, "")
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.PathStyle = gw.Endpoint, "no-such-bucket", true
	cfg.AccessKeyID, cfg.SecretAccessKey = gw.AccessKeyID, config.Secret(gw.SecretAccessKey)
	elsewhere, err := s3.New(t.Context(), cfg, s3.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gw.SecretAccessKey = "wrong"
	denied := open(t, gw, "")
	for name, c := range map[string]struct {
		s    *s3.Store
		want error
	}{"bucket": {elsewhere, objstore.ErrNoBucket}, "secret": {denied, objstore.ErrDenied}, "right": {s, objstore.ErrNotFound}} {
		_, _, err := c.s.Get(t.Context(), "k", objstore.GetOptions{})
		_, err2 := c.s.Head(t.Context(), "k")
		if !errors.Is(err, c.want) || !errors.Is(err2, c.want) {
			t.Errorf("%s: get %v, head %v, want %v", name, err, err2, c.want)
		}
		if c.s == s {
			continue
		}
		if _, err := c.s.Create(t.Context(), "k", nil, objstore.PutOptions{}); !errors.Is(err, c.want) {
			t.Errorf("%s: create %v, want %v", name, err, c.want)
		}
	}
}
