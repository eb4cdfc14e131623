package peers

import (
	"fmt"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/pkg/config"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
	"lightmetrics.dev/lightmetrics/pkg/objstore/s3"
	"lightmetrics.dev/lightmetrics/pkg/objstore/storetest"
)

func TestS3OverVersityGW(t *testing.T) {
	gw := StartVersityGW(t)
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.PathStyle = gw.Endpoint, Bucket, true
	cfg.AccessKeyID, cfg.SecretAccessKey = gw.AccessKeyID, config.Secret(gw.SecretAccessKey)
	var n atomic.Int64
	storetest.Run(t, func(t *testing.T) objstore.Store {
		// Each store is a prefix of its own: the keys of the others must not be seen.
		cfg := cfg
		cfg.Prefix = fmt.Sprintf("case %d+/", n.Add(1))
		s, err := s3.New(t.Context(), cfg, s3.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}, storetest.Features{NoFileUnderKey: true})
}
