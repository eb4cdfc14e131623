package ingest_test

import (
	"errors"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/spool"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// TestLocalSpoolAcceptsWithoutTheStore accepts while the store is down, restarts, and lands.
func TestLocalSpoolAcceptsWithoutTheStore(t *testing.T) {
	store, dir := newStore(), t.TempDir()
	spooled := func(c *ingest.Config) {
		c.Acceptance, c.Spool.Dir, c.Spool.LandingIntervalMS = "local_spool", dir, 10
	}
	c := start(t, store, spooled)
	store.down.Store(true)
	s, _ := c.mustOpen(t, boot, 0)
	for i := range uint64(5) {
		if r := s.ask(encode(t, boot, i*10, 10, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
			t.Fatalf("store down: %v", r)
		}
	}
	if r := s.ask(encode(t, boot, 0, 10, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE {
		t.Errorf("again: %v", r)
	}
	if r := s.ask(encode(t, boot, 0, 10, 1)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT {
		t.Errorf("other bytes: %v", r)
	}
	s.done()
	s, w := c.mustOpen(t, boot, 0)
	if !w.GetNumbersTaken() {
		t.Errorf("welcome with a store that is down: %v", w)
	}
	s.done()
	c.stop()
	if n := len(manifests(t, store.Store)); n != 0 {
		t.Fatalf("%d manifests while the store was down", n)
	}

	store.down.Store(false)
	c = start(t, store, spooled)
	eventually(t, "landed", func() bool { return len(manifests(t, store)) == 5 })
	s, _ = c.mustOpen(t, boot, 0)
	if r := s.ask(encode(t, boot, 0, 10, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE {
		t.Errorf("after landing: %v", r)
	}
	s.done()
}

// TestSpoolOfAnotherAuthorityEndsTheCollector: with the wrong bucket nothing of the spool is
// touched, and with the right one it lands.
func TestSpoolOfAnotherAuthorityEndsTheCollector(t *testing.T) {
	right, wrong, dir := newStore(), newStore(), t.TempDir()
	spooled := func(c *ingest.Config) {
		c.Acceptance, c.Spool.Dir, c.Spool.LandingIntervalMS = "local_spool", dir, 10
	}
	c := start(t, right, spooled)
	right.down.Store(true)
	s, _ := c.mustOpen(t, boot, 0)
	if r := s.ask(encode(t, boot, 0, 10, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Fatalf("%v", r)
	}
	s.done()
	c.stop()

	cfg := testConfig()
	spooled(&cfg)
	other, err := ingest.New(cfg, ingest.Deps{Store: wrong, Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Run(bound(t)); !errors.Is(err, spool.ErrOtherAuthority) {
		t.Errorf("the collector ended with %v", err)
	}

	right.down.Store(false)
	start(t, right, spooled)
	eventually(t, "landed", func() bool { return len(manifests(t, right)) == 1 })
}

func manifests(t testing.TB, s objstore.Store) (keys []string) {
	t.Helper()
	err := storetest.Each(t.Context(), s, layout.AcceptedPrefix, func(i objstore.Info) error {
		keys = append(keys, i.Key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
