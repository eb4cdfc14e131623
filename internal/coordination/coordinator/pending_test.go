package coordinator_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/mem"
	"lightmetrics.dev/lightmetrics/internal/coordination/work/worktest"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Wait(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// serve gives a connection to a server, here with what register adds to it.
func serve(t *testing.T, register func(grpc.ServiceRegistrar), opts ...grpc.ServerOption) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(opts...)
	register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	conn, err := rpc.Dial(l.Addr().String(), rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// servePending gives a client of a server over memory.
func servePending(t *testing.T, q work.Queue, tab work.Table, opts ...grpc.ServerOption) *coordinator.PendingWork {
	t.Helper()
	return coordinator.NewPendingWork(serve(t, coordinator.NewPendingServer(q, tab).Register, opts...), 0)
}

func open(t *testing.T, o worktest.Options) worktest.Env {
	c := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	m := mem.New(c.Now, mem.Options{MaxTries: o.MaxTries, MaxDead: o.MaxDead})
	s := servePending(t, m, m)
	return worktest.Env{Queue: s, Table: s, Wait: c.Wait, Short: time.Second}
}

func TestQueueConformance(t *testing.T) { worktest.Queue(t, open) }
func TestTableConformance(t *testing.T) { worktest.Table(t, open) }

// TestALostAnswerOfPendingWork: a change whose answer is lost is unknown, a read is unavailable.
func TestALostAnswerOfPendingWork(t *testing.T) {
	m := mem.New(func() time.Time { return time.Unix(1, 0) }, mem.Options{})
	s := servePending(t, m, m, grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		_, _ = next(ctx, req)
		return nil, errors.New("the answer is lost") // code Unknown, no reason
	}))
	r := work.Row{Key: work.Key{Log: "log", Number: 1}, Topic: "jobs", Body: []byte("x")}
	if _, err := s.Create(t.Context(), r, nil); !errors.Is(err, work.ErrUnknown) {
		t.Errorf("create: %v, want %v", err, work.ErrUnknown)
	}
	if _, err := m.Get(t.Context(), r.Key); err != nil {
		t.Errorf("the change was not made: %v", err)
	}
	if _, err := s.Get(t.Context(), r.Key); !errors.Is(err, work.ErrUnavailable) || errors.Is(err, work.ErrUnknown) {
		t.Errorf("get: %v, want %v", err, work.ErrUnavailable)
	}
}

// TestTheGreatestPage: a page of rows that are all as large as can be fits into an answer.
func TestTheGreatestPage(t *testing.T) {
	m := mem.New(func() time.Time { return time.Unix(1, 0) }, mem.Options{})
	s := servePending(t, m, m)
	for n := range uint64(work.MaxPage) {
		r := work.Row{Key: work.Key{Log: "log", Number: n + 1}, Topic: "jobs", Body: make([]byte, work.MaxBody), State: make([]byte, work.MaxState)}
		if _, err := m.Create(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	rows, next, err := s.Rows(t.Context(), "log", "", work.MaxPage)
	if err != nil || len(rows) != work.MaxPage || next != "" {
		t.Fatalf("%d rows, next %q, %v", len(rows), next, err)
	}
}
