package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// embedded is the object store of the house, reached only by HTTP.
type embedded struct {
	cfg  objectstore.Config
	addr string
	stop func()
}

func newEmbedded(t testing.TB) *embedded {
	t.Helper()
	cfg := objectstore.DefaultConfig()
	cfg.Dir, cfg.Listen, cfg.AdminListen = t.TempDir(), "127.0.0.1:0", ""
	cfg.Users = []objectstore.User{{Name: "u", AccessKeyID: "AKTEST", Secret: "secret-secret"}}
	cfg.Buckets = []string{"bucket"}
	e := &embedded{cfg: cfg}
	e.start(t)
	t.Cleanup(func() { e.stop() })
	return e
}

func (e *embedded) start(t testing.TB) {
	t.Helper()
	s, err := objectstore.New(e.cfg, objectstore.Deps{Telemetry: telemetry.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		cancel()
		t.Fatalf("object store ended: %v", err)
	}
	e.addr = s.Addr()
	e.cfg.Listen = e.addr // a restart listens where it did
	var once sync.Once
	e.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("object store ended with %v", err)
			}
		})
	}
}

func (e *embedded) client(t testing.TB) *s3.Store {
	t.Helper()
	cfg := s3.DefaultConfig()
	cfg.Endpoint, cfg.Bucket, cfg.Prefix, cfg.PathStyle = "http://"+e.addr, "bucket", "prod/", true
	cfg.AccessKeyID, cfg.SecretAccessKey = "AKTEST", config.Secret("secret-secret")
	s, err := s3.New(bound(t), cfg, s3.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestOverS3(t *testing.T) {
	e := newEmbedded(t)
	began := time.Now()
	a := start(t, &faulty{Store: e.client(t)}, func(c *ingest.Config) {
		c.ID, c.AuthorityID, c.AcceptTimeout = "a", "x", 3*time.Second
	})
	s, _ := a.mustOpen(t, boot, 0)
	first, other := encode(t, boot, 0, 10, 0), encode(t, boot, 0, 10, 1)
	if r := s.ask(first); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED {
		t.Fatalf("first: %v", r)
	}
	t.Logf("first acknowledgement %v after the start of the collector", time.Since(began))
	if r := s.ask(first); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE {
		t.Errorf("again: %v", r)
	}
	if r := s.ask(other); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT {
		t.Errorf("other bytes: %v", r)
	}
	reader := e.client(t)
	for _, f := range [][]byte{first, other} { // the loser's bytes are kept too
		got, _, err := reader.Get(bound(t), layout.Blob(identity.Sum(f), 0), objstore.GetOptions{})
		if err != nil || !bytes.Equal(got, f) {
			t.Errorf("stored frame: %d bytes, %v", len(got), err)
		}
	}

	// The store goes away and comes back.
	e.stop()
	next := encode(t, boot, 10, 10, 0)
	if r := s.ask(next); r.GetStatus() != ingestv1.BatchStatus_BATCH_STATUS_RETRY {
		t.Errorf("store away: %v", r)
	}
	if c := a.post(t, next, func(r *http.Request) { r.Header.Set(ingest.SpoolIDHeader, "spool-1") }); c.code != 503 || c.header.Get("Retry-After") == "" {
		t.Errorf("store away: %+v", c)
	}
	e.start(t)
	eventually(t, "accepted again", func() bool {
		r := s.ask(next)
		return r.GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_ACCEPTED || r.GetStatus() == ingestv1.BatchStatus_BATCH_STATUS_DUPLICATE
	})
	s.done()
	s, w := a.mustOpen(t, boot, 0)
	if !w.GetNumbersTaken() {
		t.Errorf("welcome: %v", w)
	}
	s.done()

	// Two collectors race over the same store.
	b := start(t, &faulty{Store: e.client(t)}, func(c *ingest.Config) { c.ID, c.AuthorityID = "b", "x" })
	racing := identity.Boot{Agent: "web-9", Boot: "b"}
	for i := range uint64(50) {
		frames := [2][]byte{encode(t, racing, i, 1, 1), encode(t, racing, i, 1, float64(i%2))}
		var outcomes [2]string
		var wg sync.WaitGroup
		for k, c := range []*collector{a, b} {
			wg.Go(func() {
				r, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: frames[k]})
				switch {
				case err != nil && status.Code(err) == codes.FailedPrecondition:
					outcomes[k] = rpc.Reason(err)
				case err != nil:
					t.Errorf("round %d: %v", i, err)
				default:
					outcomes[k] = fmt.Sprint(r.GetDuplicate())
				}
			})
		}
		wg.Wait()
		second := "true"
		if i%2 == 0 {
			second = ingest.ReasonIdentityConflict
		}
		if !(outcomes[0] == "false" && outcomes[1] == second) && !(outcomes[1] == "false" && outcomes[0] == second) {
			t.Errorf("round %d: %v", i, outcomes)
		}
	}
}

// BenchmarkOverS3 sends batches of 500 samples to a collector over the embedded
// store, and puts the same bytes there by the bare conditional requests, both with
// 32 in flight, in turns.
func BenchmarkOverS3(b *testing.B) {
	const inFlight = 32
	e := newEmbedded(b)
	c := start(b, &faulty{Store: e.client(b)}, func(c *ingest.Config) { c.Limits.StreamBatches = inFlight })
	bare := e.client(b)
	h := newHost(b, 5)
	round := 0
	frames := func(kind string) (identity.Boot, [][]byte) {
		round++
		boot := identity.Boot{Agent: fmt.Sprintf("%s-%d", kind, round), Boot: "b"}
		fs := make([][]byte, b.N)
		for i := range fs {
			fs[i] = h.frame(b, boot, i)
		}
		return boot, fs
	}
	var took [2]time.Duration
	turn := func(k int) {
		boot, fs := frames([]string{"ingest", "bare"}[k])
		start := time.Now()
		if k == 0 {
			pump(b, c.GRPCAddr(), boot, fs)
		} else {
			bareRequests(b, bare, boot, fs, inFlight)
		}
		took[k] += time.Since(start)
	}
	for _, k := range []int{0, 1, 1, 0} {
		turn(k)
	}
	n := float64(2 * b.N)
	b.ReportMetric(n/took[0].Seconds(), "accepted/s")
	b.ReportMetric(n/took[1].Seconds(), "bare/s")
	b.ReportMetric(took[1].Seconds()/took[0].Seconds(), "ratio")
}

// bareRequests makes the requests of acceptance and nothing else.
func bareRequests(b testing.TB, store objstore.Store, boot identity.Boot, frames [][]byte, inFlight int) {
	manifest := bytes.Repeat([]byte("m"), 700)
	ctx := context.Background()
	next := make(chan int)
	var wg sync.WaitGroup
	for range inFlight {
		wg.Go(func() {
			for i := range next {
				sum := identity.Sum(frames[i])
				id := identity.Batch{Agent: boot.Agent, Boot: boot.Boot, SeqStart: uint64(i), SeqEnd: uint64(i)}
				_, err1 := store.Create(ctx, layout.Blob(sum, 0), frames[i], objstore.PutOptions{SHA256: sum})
				_, err2 := store.Create(ctx, layout.Accepted(id), manifest, objstore.PutOptions{SHA256: identity.Sum(manifest)})
				_, err3 := store.Head(ctx, layout.Condemned(sum, 0))
				if err1 != nil || err2 != nil || !errors.Is(err3, objstore.ErrNotFound) {
					b.Error(err1, err2, err3)
				}
			}
		})
	}
	for i := range frames {
		next <- i
	}
	close(next)
	wg.Wait()
}
