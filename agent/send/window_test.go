package send

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

const frameSize = 1000

// windowSession has twelve batches of frameSize bytes to send, and no stream.
func windowSession(t *testing.T) *session {
	t.Helper()
	q, err := queue.Open(vfs.OS, t.TempDir(), queue.Options{Agent: "a", MaxBytes: 1 << 20, SegmentBytes: 64 << 10,
		Policy: queue.RefuseNew, Now: time.Now, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	for range 12 {
		if _, err := q.Append(queue.Part{Records: 1, Encode: func(id identity.Batch) ([]byte, error) {
			return append([]byte(id.String()), make([]byte, frameSize-len(id.String()))...), nil
		}}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(DefaultConfig(), q, Deps{Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	boot, spool, _ := q.Boot()
	return &session{s: s, target: s.preferred.first(), boot: boot, spool: spool,
		flights: map[identity.Digest]*flight{}, inFlight: map[uint64]bool{}}
}

// launched plans until the window is full, and counts.
func launched(t *testing.T, x *session) (n int) {
	t.Helper()
	for {
		m, err := x.nextFrame()
		if err != nil {
			t.Fatal(err)
		}
		if m == nil {
			return n
		}
		n++
	}
}

// TestWindows: no more batches and bytes are in flight than both sides allow; but always one.
func TestWindows(t *testing.T) {
	for name, c := range map[string]struct {
		welcome *ingestv1.Welcome
		change  func(*Config)
		want    int
	}{
		"the agent's batches":      {&ingestv1.Welcome{}, func(c *Config) { c.MaxInFlightBatches = 5 }, 5},
		"the agent's bytes":        {&ingestv1.Welcome{}, func(c *Config) { c.MaxInFlightBytes = 3*frameSize + 1 }, 3},
		"the collector's batches":  {&ingestv1.Welcome{MaxInFlightBatches: 4}, func(*Config) {}, 4},
		"the collector's bytes":    {&ingestv1.Welcome{MaxInFlightBytes: 2*frameSize + frameSize/2}, func(*Config) {}, 2},
		"exactly two batches":      {&ingestv1.Welcome{MaxInFlightBytes: 2 * frameSize}, func(*Config) {}, 2},
		"less than one batch":      {&ingestv1.Welcome{MaxInFlightBytes: 1}, func(*Config) {}, 1},
		"more than the agent's":    {&ingestv1.Welcome{MaxInFlightBatches: 64, MaxInFlightBytes: 1 << 40}, func(c *Config) { c.MaxInFlightBatches = 5 }, 5},
		"everything that there is": {&ingestv1.Welcome{}, func(*Config) {}, 12},
	} {
		x := windowSession(t)
		c.change(&x.s.cfg)
		if err := x.applyWelcome(c.welcome); err != nil {
			t.Fatal(err)
		}
		if n := launched(t, x); n != c.want {
			t.Errorf("%s: %d batches in flight, want %d", name, n, c.want)
		}
		if c.want == 12 {
			continue
		}
		for d, f := range x.flights { // what landed makes room
			x.endFlight(d, f)
			x.inFlight[f.entry.No] = true // it would be answered
			break
		}
		if n := launched(t, x); n != 1 {
			t.Errorf("%s: %d more after one answer, want 1", name, n)
		}
	}
}

// lateWelcome is a collector whose welcome comes at the moment at which the sender stops waiting for it.
type lateWelcome struct {
	grpc.ClientStream
	ctx context.Context
}

func (c *lateWelcome) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errors.New("no calls")
}

func (c *lateWelcome) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	c.ctx = ctx
	return c, nil
}

func (c *lateWelcome) SendMsg(any) error { return nil }

func (c *lateWelcome) RecvMsg(m any) error {
	<-c.ctx.Done()
	m.(*ingestv1.StreamBatchesResponse).Message = &ingestv1.StreamBatchesResponse_Welcome{Welcome: &ingestv1.Welcome{}}
	return nil
}

// TestAWelcomeAtTheEnd: the stream is canceled by then, so it counts as one that did not come.
func TestAWelcomeAtTheEnd(t *testing.T) {
	x := windowSession(t)
	x.s.cfg.ConnectTimeout = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, _, err := x.open(ctx, cancel, &lateWelcome{}); err == nil || !strings.Contains(err.Error(), "no welcome within 1ms") {
		t.Errorf("%v", err)
	}
}
