package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// TestStoreDownAndUpAgain: while the store is down, streams are answered RETRY, HTTP
// 503 with Retry-After, and the agent keeps everything; when it is back, the agent's
// queue drains in order and nothing is missing.
func TestStoreDownAndUpAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, cluster.Options{Collectors: 2, ScrapeInterval: 200 * time.Millisecond, BatchAge: 400 * time.Millisecond})
	ctx := within(t, 3*time.Minute)
	must(t, c.StartStore(ctx))
	for i := range c.Collectors {
		must(t, c.StartCollector(ctx, i))
	}
	must(t, c.StartAgent(ctx))
	waitAgent(ctx, t, c, "the first batches to be accepted", func(pending int, next uint64) bool { return next > 1 && pending == 0 })

	cluster.Kill(&c.Store)
	boot := identity.Boot{Agent: "outage", Boot: "boot"}
	body := makeFrame(t, boot, "m", 1, 5, time.Unix(1_700_000_000, 0), 1)
	refusedOverHTTP(ctx, t, c, body)
	s := load.NewSender(boot, c.Addr.Collectors[1].GRPC)
	defer s.Close()
	if err := s.Open(ctx); err == nil {
		r, err := s.Try(ctx, body)
		must(t, err)
		if r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY || r.GetReason() == "" || r.GetRetryDelay().AsDuration() <= 0 {
			t.Errorf("stream answered %v", r)
		}
	}
	s.Close()
	// The agent keeps on queueing.
	waitAgent(ctx, t, c, "a backlog", func(pending int, _ uint64) bool { return pending >= 5 })

	must(t, c.StartStore(ctx))
	waitAgent(ctx, t, c, "the backlog to drain", func(pending int, _ uint64) bool { return pending <= 1 })
	if _, err := s.Send(ctx, body); err != nil {
		t.Fatal(err)
	}
	must(t, cluster.Stop(&c.Agent))
	store, err := c.OpenStore(ctx)
	must(t, err)
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority})
	must(t, err)
	for _, f := range report.Findings {
		t.Error(f)
	}
	for b, l := range report.Ledgers {
		if gaps := l.Gaps(3); len(gaps) > 0 {
			t.Errorf("%s has gaps %v", b, gaps)
		}
	}
	if len(report.Ledgers) != 2 {
		t.Errorf("%d boots in the bucket, want the agent's and ours", len(report.Ledgers))
	}
}

// refusedOverHTTP posts the frame to the first collector while the store is down.
func refusedOverHTTP(ctx context.Context, t *testing.T, c *cluster.Cluster, body []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.Addr.Collectors[0].HTTP+"/v1/batches", bytes.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/vnd.lightmetrics.batch")
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" || !json.Valid(b) {
		t.Errorf("store down: %s, Retry-After %q, %s", resp.Status, resp.Header.Get("Retry-After"), b)
	}
}

func waitAgent(ctx context.Context, t *testing.T, c *cluster.Cluster, what string, done func(pending int, next uint64) bool) {
	t.Helper()
	must(t, cluster.Poll(ctx, what, func() (bool, error) {
		st, err := c.AgentStatus(ctx)
		if err != nil {
			return false, err
		}
		return done(st.Queue.Pending, st.Boot.NextSeq), fmt.Errorf("pending %d, next %d", st.Queue.Pending, st.Boot.NextSeq)
	}))
}
