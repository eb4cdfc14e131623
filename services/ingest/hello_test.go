package ingest_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// deafList is a store that leaves listings of accepted/ without an answer until gate closes.
type deafList struct {
	objstore.Store
	asked chan struct{}
	gate  chan struct{}
}

func (d deafList) List(ctx context.Context, o objstore.ListOptions) (objstore.Page, error) {
	if objstore.Family(o.Prefix) != "accepted" {
		return d.Store.List(ctx, o)
	}
	d.asked <- struct{}{}
	select {
	case <-d.gate:
		return d.Store.List(ctx, o)
	case <-ctx.Done():
		return objstore.Page{}, &objstore.Error{Op: "list", Key: o.Prefix, Err: objstore.ErrUnavailable}
	}
}

func (c *collector) hello(t testing.TB) sender {
	t.Helper()
	st, err := c.client.StreamBatches(bound(t))
	if err != nil {
		t.Fatal(err)
	}
	h := &ingestv1.Hello{AgentId: boot.Agent, BootId: boot.Boot, SpoolId: "spool-1"}
	if err := st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: h}}); err != nil {
		t.Fatal(err)
	}
	return sender{st, t}
}

// TestHelloTimeoutIsTheSendersAlone: a stream without a hello ends as BAD_HELLO; one
// whose hello waits for the store's listing does not, however long that takes.
func TestHelloTimeoutIsTheSendersAlone(t *testing.T) {
	d := deafList{newStore().Store, make(chan struct{}, 1), make(chan struct{})}
	c := start(t, &faulty{Store: d}, func(c *ingest.Config) { c.Limits.HelloTimeout = 50 * time.Millisecond })
	waits := c.hello(t)
	<-d.asked

	// Begun later, so that the first one's time is over when this one's is.
	silent, err := c.client.StreamBatches(bound(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := silent.Recv(); status.Code(err) != codes.InvalidArgument || rpc.Reason(err) != ingest.ReasonBadHello {
		t.Errorf("silent stream: %v", err)
	}
	close(d.gate)
	m, err := waits.Recv()
	if err != nil || m.GetWelcome() == nil {
		t.Fatalf("the sender that said hello: %v, %v", m, err)
	}
	waits.done()
}

// TestLocalSpoolWelcomesWithoutTheStore: with a store that answers nothing, a spool
// accepts as before.
func TestLocalSpoolWelcomesWithoutTheStore(t *testing.T) {
	d := deafList{newStore().Store, make(chan struct{}, 1), make(chan struct{})}
	dir := t.TempDir()
	c := start(t, &faulty{Store: d}, func(c *ingest.Config) {
		c.Acceptance, c.Spool.Dir, c.Spool.LandingIntervalMS = "local_spool", dir, 10
		c.Limits.HelloTimeout = 50 * time.Millisecond
	})
	s := c.hello(t)
	if m, err := s.Recv(); err != nil || m.GetWelcome() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	if r := s.ask(encode(t, boot, 0, 10, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Errorf("%v", r)
	}
	s.done()
}
