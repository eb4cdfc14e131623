package ingest_test

import (
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/epochs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// A collector with the setting reads no markers once its run names an epoch, and names a new one without being asked; where
// no collection keeps a log of epochs it reads them as ever.
func TestMarkerReads(t *testing.T) {
	s := newStore()
	c := start(t, s, func(cfg *ingest.Config) {
		cfg.MarkerReads, cfg.EpochsInterval = "epochs", 10*time.Millisecond
		cfg.AuthorityID = "authority-1"
	})
	seq := uint64(0)
	submit := func() {
		t.Helper()
		seq++
		if _, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: encode(t, boot, seq, 1, float64(seq)), SpoolId: "s"}); err != nil {
			t.Fatal(err)
		}
	}
	spared := func() float64 {
		t.Helper()
		got, err := c.tel.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range got {
			if strings.HasSuffix(f.GetName(), "markers_spared_total") {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		t.Fatal("no such metric")
		return 0
	}
	submit()
	if spared() != 0 {
		t.Fatal("without a log of epochs")
	}
	l, by := epochs.NewLog(s, "authority-1"), epochs.Writer{Store: s, By: "test"}
	if err := l.Begin(t.Context(), by); err != nil {
		t.Fatal(err)
	}
	name := func(frames ...identity.Digest) uint64 {
		t.Helper()
		n, err := l.Name(t.Context(), by, frames)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	name()
	// Its run said that it names none, so it takes another one, whose first segments spare nothing.
	eventually(t, "spared", func() bool { submit(); return spared() > 0 })
	// An idle run names the next epoch, so that a collection need not wait.
	at := name(identity.Sum([]byte("x")))
	b := journal.NewBarrier(s, "authority-1", at)
	eventually(t, "named", func() bool {
		left, err := b.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	cfg := ingest.DefaultConfig()
	if err := cfg.Validate(); err != nil || cfg.MarkerReads != "always" {
		t.Fatalf("by default %q, %v", cfg.MarkerReads, err)
	}
	cfg.MarkerReads = "never"
	if cfg.Validate() == nil {
		t.Error("never is allowed")
	}
	cfg.MarkerReads, cfg.Acceptance, cfg.Spool.Dir = "epochs", string(accept.ModeLocalSpool), t.TempDir()
	if cfg.Validate() == nil {
		t.Error("a spooler names no epochs")
	}
}
