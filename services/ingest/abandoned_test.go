package ingest_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/gc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

func reports(t *testing.T, s objstore.Store) (all []gc.OrphanReport) {
	t.Helper()
	err := storetest.Each(t.Context(), s, layout.OrphanReportsPrefix, func(o objstore.Info) error {
		b, _, err := s.Get(t.Context(), o.Key, objstore.GetOptions{})
		if err != nil {
			return err
		}
		r, err := gc.ParseOrphanReport(b)
		all = append(all, r)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// A submission that ends without an outcome and is never sent again is reported; one that is sent again is not.
func TestAbandonedBlobsAreReported(t *testing.T) {
	for _, every := range []time.Duration{10 * time.Millisecond, time.Hour} {
		c := launch(t, newStore(), rpc.ClientConfig{}, func(c *ingest.Config) {
			c.AcceptTimeout, c.Orphans.ReportInterval = 100*time.Millisecond, every
		})
		eventually(t, "ready", func() bool { return c.NotReady() == nil })
		submit := func(f []byte) codes.Code {
			_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: f, SpoolId: "spool-1"})
			return status.Code(err)
		}
		good, again, gone := encode(t, boot, 0, 10, 0), encode(t, boot, 10, 10, 0), encode(t, boot, 20, 10, 0)
		eventually(t, "accepted", func() bool { return submit(good) == codes.OK })
		if every == time.Hour {
			release := c.store.block()
			if got := submit(again); got != codes.Unavailable {
				t.Errorf("%v", got)
			}
			release()
			eventually(t, "accepted the second time", func() bool { return submit(again) == codes.OK })
		}
		release := c.store.block()
		if got := submit(gone); got != codes.Unavailable {
			t.Errorf("%v", got)
		}
		if every == time.Hour {
			c.stop() // what is left is reported at the end
		} else {
			eventually(t, "reported", func() bool { return len(reports(t, c.store.Store)) > 0 })
		}
		release()
		rs := reports(t, c.store.Store)
		if len(rs) != 1 || len(rs[0].Frames) != 1 || rs[0].Frames[0] != identity.Sum(gone) || rs[0].CollectorID != "collector-a" || rs[0].Submissions < 2 ||
			!strings.HasPrefix(rs[0].Witness, layout.AcceptedBoot(boot)) {
			t.Errorf("%s: %+v", every, rs)
		}
	}
}

// A blob of a frame that its manifest carries is reported, although the submission has an outcome, which the sender gets at once.
func TestUnneededBlobsAreReported(t *testing.T) {
	s, f := newStore(), encode(t, boot, 1, 2, 0)
	for i, below := range []config.Bytes{1 << 10, 0} {
		c := start(t, s, func(c *ingest.Config) { c.InlineBelow, c.Orphans.ReportInterval = below, 10*time.Millisecond })
		for range 2 {
			if _, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: f, SpoolId: "s"}); err != nil {
				t.Fatal(err)
			}
		}
		if i == 1 {
			eventually(t, "reported", func() bool { return len(reports(t, s)) > 0 })
		}
		c.stop()
		if rs := reports(t, s); i == 0 && len(rs) > 0 || i == 1 && (rs[0].Frames[0] != identity.Sum(f) || rs[0].Witness == "") {
			t.Errorf("%d: %+v", i, rs)
		}
	}
}
