package badinput

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// collector is a running ingest service over a store that the test can list.
type collector struct {
	*ingest.Service
	store  objstore.Store
	conn   *grpc.ClientConn
	client ingestv1.IngestServiceClient
	next   atomic.Uint64
}

func memStore() objstore.Store { return mem.New(time.Now) }

func startCollector(t testing.TB, store objstore.Store, set ...func(*ingest.Config)) *collector {
	t.Helper()
	cfg := ingest.DefaultConfig()
	cfg.GRPC.Listen, cfg.HTTP.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.ID, cfg.AuthorityID = "collector-a", authority
	cfg.DrainTimeout, cfg.AcceptTimeout = 5*time.Second, 5*time.Second
	cfg.Limits.Future = 0 // frames of the corpus have fixed times
	for _, f := range set {
		f(&cfg)
	}
	c := &collector{store: store}
	var err error
	if c.Service, err = ingest.New(cfg, ingest.Deps{Store: store, Telemetry: quietTelemetry()}); err != nil {
		t.Fatal(err)
	}
	runService(t, c.Run, c.Ready())
	eventually(t, "collector ready", func() bool { return c.NotReady() == nil })
	if c.conn, err = rpc.Dial(c.GRPCAddr(), rpc.ClientConfig{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close(); http.DefaultClient.CloseIdleConnections() })
	c.client = ingestv1.NewIngestServiceClient(c.conn)
	return c
}

// runService runs until the test ends; an error of Run fails the test.
func runService(t testing.TB, run func(context.Context) error, ready <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	select {
	case <-ready:
	case err := <-done:
		cancel()
		t.Fatalf("the service ended: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// wantHealthy sends a good batch of its own boot: the collector still does its work.
func (c *collector) wantHealthy(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n := c.next.Add(1)
	res, err := c.client.SubmitBatch(ctx, &ingestv1.SubmitBatchRequest{Frame: goodFrame(t, "healthy", "boot", 2*n), SpoolId: "s"})
	if err != nil || res.GetDuplicate() {
		t.Fatalf("the collector does not accept any more: %v, %v", res, err)
	}
	resp, err := http.Get(fmt.Sprintf("http://%s/-/ready", c.HTTPAddr()))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("ready is %s", resp.Status)
	}
}
