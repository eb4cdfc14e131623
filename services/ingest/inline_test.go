package ingest_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// A collector with the setting writes manifests that carry their frames, and blobs of longer ones.
func TestInlineBelow(t *testing.T) {
	s := newStore()
	small, large := encode(t, boot, 1, 2, 0), encode(t, boot, 3, 500, 1)
	c := start(t, s, func(cfg *ingest.Config) { cfg.InlineBelow = 170 })
	if len(small) >= 170 || len(large) < 170 {
		t.Fatalf("frames of %d and %d bytes", len(small), len(large))
	}
	for _, f := range [][]byte{small, large} {
		if _, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: f, SpoolId: "s"}); err != nil {
			t.Fatal(err)
		}
	}
	blobs, carried := 0, 0
	err := storetest.Each(t.Context(), s, layout.RawBlobsPrefix, func(objstore.Info) error { blobs++; return nil })
	if err == nil {
		err = storetest.Each(t.Context(), s, layout.AcceptedPrefix, func(i objstore.Info) error {
			b, _, err := s.Get(t.Context(), i.Key, objstore.GetOptions{})
			if accept.InlineFrame(b) != nil {
				carried++
			}
			return err
		})
	}
	if err != nil || blobs != 1 || carried != 1 {
		t.Errorf("%d blobs, %d manifests with a frame, %v", blobs, carried, err)
	}
	for _, below := range []config.Bytes{-1, accept.MaxInlineFrame + 1} {
		cfg := ingest.DefaultConfig()
		if err := cfg.Validate(); err != nil || cfg.InlineBelow != 0 {
			t.Fatalf("by default it is %v, %v", cfg.InlineBelow, err)
		}
		cfg.InlineBelow = below
		if cfg.Validate() == nil {
			t.Errorf("%v is allowed", below)
		}
	}
}
