package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

func TestMain(m *testing.M) {
	if os.Getenv(collectorEnv) != "" {
		serveCollector()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestShedsWhenFull(t *testing.T) {
	f, big := encode(t, boot, 0, 10, 0), bigFrame(t, boot, 100, 8<<10)
	c := start(t, newStore(), func(c *ingest.Config) {
		c.Limits.FrameBytes = config.Bytes(len(big))
		c.Limits.InFlightBytes = config.Bytes(len(big)) // which leaves no room for f
		c.Limits.ShedAfter, c.Limits.RetryAfter = time.Millisecond, 7*time.Second
	})
	s, _ := c.mustOpen(t, boot, 0)
	release := c.store.block()
	s.send(big)
	eventually(t, "one in flight", func() bool { return c.store.held.Load() == 1 })
	if r := s.ask(f); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY || r.GetReason() != rpc.ReasonOverloaded ||
		r.GetRetryDelay().AsDuration() != 7*time.Second || r.GetSeqEnd() != 9 {
		t.Errorf("stream: %v", r)
	}
	_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: f, SpoolId: "spool-1"})
	if status.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != rpc.ReasonOverloaded || rpc.RetryAfter(err) != 7*time.Second {
		t.Errorf("unary: %v", err)
	}
	spool := func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, "spool-1") }
	if a := c.post(t, f, spool); a.code != 429 || a.header.Get("Retry-After") != "7" || a.body["error"] != "overloaded" {
		t.Errorf("HTTP: %+v", a)
	}
	if n := c.batches(t, "retry", rpc.ReasonOverloaded); n != 3 {
		t.Errorf("counted %v sheds", n)
	}
	release()
	if r := s.recv(); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Errorf("the one in flight: %v", r)
	}
	if a := c.post(t, f, spool); a.code != 200 {
		t.Errorf("with room again: %+v", a)
	}
	s.done()
}

func TestRateOfAnAgent(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.Limits.AgentBatchesPerSec, c.Limits.AgentBatchesBurst = 0.001, 2 })
	s, _ := c.mustOpen(t, boot, 0)
	for i := range uint64(2) {
		if r := s.ask(encode(t, boot, i, 1, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
			t.Fatalf("%v", r)
		}
	}
	if r := s.ask(encode(t, boot, 2, 1, 0)); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY || r.GetReason() != ingest.ReasonRateLimited || r.GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("third: %v", r)
	}
	other := identity.Boot{Agent: "web-2", Boot: "b"}
	if _, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: encode(t, other, 0, 1, 0)}); err != nil {
		t.Errorf("another agent: %v", err)
	}
	s.done()
}

func TestStoreDownAndBack(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.AcceptTimeout = time.Second })
	s, _ := c.mustOpen(t, boot, 0)
	f := encode(t, boot, 0, 10, 0)
	c.store.down.Store(true)
	if r := s.ask(f); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY || r.GetReason() != string(accept.ReasonStoreUnavailable) || r.GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("stream: %v", r)
	}
	_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: f, SpoolId: "spool-1"})
	if status.Code(err) != codes.Unavailable || rpc.RetryAfter(err) <= 0 {
		t.Errorf("unary: %v", err)
	}
	spool := func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, "spool-1") }
	if a := c.post(t, f, spool); a.code != 503 || a.header.Get("Retry-After") == "" || a.body["error"] != "store_unavailable" {
		t.Errorf("HTTP: %+v", a)
	}
	if _, _, err := c.open(t, &ingestv1.Hello{AgentId: "web-2", BootId: "b"}); status.Code(err) != codes.Unavailable || rpc.RetryAfter(err) <= 0 {
		t.Errorf("hello: %v", err)
	}
	c.store.down.Store(false)
	eventually(t, "accepted again", func() bool {
		r := s.ask(f)
		return r.GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED || r.GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE
	})
	if a := c.post(t, f, spool); a.code != 200 || a.body["duplicate"] != true {
		t.Errorf("back: %+v", a)
	}
	s.done()
}

// TestNotReadyUntilQualified starts without a store, loses its rights, and recovers twice.
func TestNotReadyUntilQualified(t *testing.T) {
	store := newStore()
	store.down.Store(true)
	c := launch(t, store, rpc.ClientConfig{}, nil)
	f := encode(t, boot, 0, 10, 0)
	countRefused := func(when string) {
		t.Helper()
		_, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: f})
		if status.Code(err) != codes.Unavailable || rpc.Reason(err) != rpc.ReasonNotReady || rpc.RetryAfter(err) <= 0 {
			t.Errorf("%s, unary: %v", when, err)
		}
		if a := c.post(t, f, nil); a.code != 503 || a.body["error"] != "not_ready" || a.header.Get("Retry-After") == "" {
			t.Errorf("%s, HTTP: %+v", when, a)
		}
		if _, _, err := c.open(t, &ingestv1.Hello{AgentId: "a", BootId: "b"}); rpc.Reason(err) != rpc.ReasonNotReady {
			t.Errorf("%s, hello: %v", when, err)
		}
		if code := get(t, "http://"+c.HTTPAddr()+"/-/ready"); code != 503 {
			t.Errorf("%s, /-/ready: %d", when, code)
		}
		h, err := healthpb.NewHealthClient(c.conn).Check(bound(t), &healthpb.HealthCheckRequest{})
		if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("%s, health: %v, %v", when, h, err)
		}
	}
	countRefused("store down")
	store.down.Store(false)
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	if a := c.post(t, f, nil); a.code != 200 {
		t.Fatalf("ready: %+v", a)
	}
	store.denied.Store(true)
	if a := c.post(t, encode(t, boot, 10, 1, 0), nil); a.code != 503 {
		t.Errorf("denied: %+v", a)
	}
	countRefused("store denies")
	store.denied.Store(false)
	eventually(t, "ready again", func() bool { return c.NotReady() == nil })
	if code := get(t, "http://"+c.HTTPAddr()+"/-/ready"); code != 200 {
		t.Errorf("/-/ready: %d", code)
	}
}

// careless is a store that forgets to look before a conditional create.
type careless struct{ objstore.Store }

func (c careless) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return c.Store.Put(ctx, key, body, o)
}

func TestNeverReadyOnAStoreThatBreaksItsPromise(t *testing.T) {
	store := newStore()
	store.Store = careless{store.Store}
	c := launch(t, store, rpc.ClientConfig{}, nil)
	eventually(t, "refused", func() bool { return errors.Is(c.NotReady(), accept.ErrNotQualified) })
	if a := c.post(t, encode(t, boot, 0, 1, 0), nil); a.code != 503 || a.body["error"] != "not_ready" {
		t.Errorf("%+v", a)
	}
	if got := contents(t, store); len(got) != 0 {
		t.Errorf("wrote %v", got)
	}
}

func get(t testing.TB, url string) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestAnotherAuthorityEndsTheCollector(t *testing.T) {
	store := newStore()
	c := start(t, store, func(c *ingest.Config) { c.AuthorityID = "one" })
	c.stop()
	cfg := testConfig()
	cfg.AuthorityID = "two"
	s, err := ingest.New(cfg, ingest.Deps{Store: store, Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(bound(t)); err == nil {
		t.Error("a collector of another authority ran")
	}
}

// TestTwoCollectorsRace lets two collectors take the same identities at once, with
// equal and with different frames: one answer per identity.
func TestTwoCollectorsRace(t *testing.T) {
	store := newStore()
	a := start(t, store, func(c *ingest.Config) { c.ID, c.AuthorityID = "a", "x" })
	b := start(t, store, func(c *ingest.Config) { c.ID, c.AuthorityID = "b", "x" })
	const rounds = 200
	for i := range uint64(rounds) {
		equal := i%2 == 0
		frames := [2][]byte{encode(t, boot, i*5, 5, 1), encode(t, boot, i*5, 5, 1)}
		if !equal {
			frames[1] = encode(t, boot, i*5, 5, 2)
		}
		var accepted, duplicates, conflicts atomic.Int32
		var wg sync.WaitGroup
		for k, c := range []*collector{a, b} {
			wg.Go(func() {
				r, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: frames[k]})
				switch {
				case err == nil && r.GetDuplicate():
					duplicates.Add(1)
				case err == nil:
					accepted.Add(1)
				case rpc.Reason(err) == ingest.ReasonIdentityConflict:
					conflicts.Add(1)
				default:
					t.Errorf("round %d: %v", i, err)
				}
			})
		}
		wg.Wait()
		wantDuplicates, wantConflicts := int32(1), int32(0)
		if !equal {
			wantDuplicates, wantConflicts = 0, 1
		}
		if accepted.Load() != 1 || duplicates.Load() != wantDuplicates || conflicts.Load() != wantConflicts {
			t.Fatalf("round %d: %d accepted, %d duplicates, %d conflicts", i, accepted.Load(), duplicates.Load(), conflicts.Load())
		}
	}
	quarantined := 0
	if err := storetest.Each(t.Context(), store, layout.QuarantinePrefix, func(objstore.Info) error { quarantined++; return nil }); err != nil || quarantined != rounds/2 {
		t.Errorf("%d quarantine records, %v", quarantined, err)
	}
}

// TestManyAgentsWithLargeFrames has more agents than receive slots, and more bytes
// on their way than may be in flight: all must get through.
func TestManyAgentsWithLargeFrames(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) {
		c.Limits.InFlightBytes, c.Limits.Receivers, c.Limits.ShedAfter = 4<<20, 2, testTimeout
	})
	const agents, each = 12, 3
	var wg sync.WaitGroup
	for i := range agents {
		b := identity.Boot{Agent: fmt.Sprintf("web-%d", i), Boot: "b"}
		frames := make([][]byte, each)
		for k := range frames {
			frames[k] = bigFrame(t, b, uint64(k)<<32, 2<<20)
		}
		wg.Go(func() {
			conn, err := rpc.Dial(c.GRPCAddr(), rpc.ClientConfig{})
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			st, err := ingestv1.NewIngestServiceClient(conn).StreamBatches(bound(t))
			if err != nil {
				t.Error(err)
				return
			}
			_ = st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Hello{Hello: &ingestv1.Hello{AgentId: b.Agent, BootId: b.Boot}}})
			for _, f := range frames {
				_ = st.Send(&ingestv1.StreamBatchesRequest{Message: &ingestv1.StreamBatchesRequest_Frame{Frame: f}})
			}
			for k := range each + 1 {
				m, err := st.Recv()
				if err != nil || k > 0 && m.GetResult().GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
					t.Errorf("agent %d, answer %d: %v, %v", i, k, m, err)
					return
				}
			}
		})
	}
	wg.Wait()
	n := 0
	if err := storetest.Each(t.Context(), c.store, layout.AcceptedPrefix, func(objstore.Info) error { n++; return nil }); err != nil || n != agents*each {
		t.Errorf("%d accepted, %v", n, err)
	}
}

func TestDrainAnswersHTTP(t *testing.T) {
	c := start(t, newStore(), nil)
	release := c.store.block()
	answered := make(chan int, 1)
	go func() {
		resp, err := http.Post("http://"+c.HTTPAddr()+"/v1/batches", "application/vnd.lightmetrics.batch", bytes.NewReader(encode(t, boot, 0, 5, 0)))
		if err != nil {
			answered <- 0
			return
		}
		resp.Body.Close()
		answered <- resp.StatusCode
	}()
	eventually(t, "one in flight", func() bool { return c.store.held.Load() == 1 })
	ended := make(chan struct{})
	go func() { c.stop(); close(ended) }()
	eventually(t, "draining", func() bool {
		_, err := c.client.SubmitBatch(context.Background(), &ingestv1.SubmitBatchRequest{})
		return status.Code(err) == codes.Unavailable
	})
	release()
	if code := <-answered; code != 200 {
		t.Errorf("answer during drain: %d", code)
	}
	<-ended
}
