package http1

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// bounded runs a server with two places. A request to /wait waits for release, after it has said so on begun.
func bounded(t *testing.T) (s *Server, addr string, begun chan struct{}, release func(), refused, displaced *atomic.Int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused, displaced = new(atomic.Int32), new(atomic.Int32)
	begun = make(chan struct{}, 10)
	held := make(chan struct{})
	release = sync.OnceFunc(func() { close(held) })
	s = &Server{Log: slog.New(slog.DiscardHandler), timeouts: defaults, MaxConns: 2, Full: []byte("HTTP/1.1 503 Full\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull"),
		Refused: func() { refused.Add(1) }, Displaced: func() { displaced.Add(1) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				begun <- struct{}{}
				<-held
			}
			_, _ = io.WriteString(w, "done")
		})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, patience) }()
	t.Cleanup(func() {
		release()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := s.Conns(); n != 0 {
			t.Errorf("%d connections have a place after the end", n)
		}
	})
	return s, l.Addr().String(), begun, release, refused, displaced
}

// With all places taken a new connection gets that of the one that has waited longest for a request. Where each has a
// request it is told so and closed, and those that have one are served to their end.
func TestConnectionsAreBounded(t *testing.T) {
	s, addr, begun, release, refused, displaced := bounded(t)
	const get, wait = "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n"
	ask := func(c *client, want string) {
		t.Helper()
		if _, body := c.answer("GET"); body != want {
			t.Errorf("got %q, want %q", body, want)
		}
	}
	idlers := func(n int) { // waits until so many connections wait for a request
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			have := 0
			s.mu.Lock()
			for c := range s.conns {
				if c.placed && c.state.Load() == idle {
					have++
				}
			}
			s.mu.Unlock()
			if have == n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d connections are idle, want %d", have, n)
			}
		}
	}
	old := dial(t, addr)
	old.send(get)
	ask(old, "done")
	idlers(1)
	silent := dial(t, addr) // has sent nothing, and came after the other became idle
	idlers(2)
	one := dial(t, addr)
	one.send(wait)
	<-begun
	old.closed()
	two := dial(t, addr)
	two.send(wait)
	<-begun
	silent.closed()
	if displaced.Load() != 2 || refused.Load() != 0 || s.Conns() != 2 {
		t.Errorf("%d displaced, %d refused, %d places", displaced.Load(), refused.Load(), s.Conns())
	}
	for range 3 {
		c := dial(t, addr)
		c.send(get)
		r, body := c.answer("GET")
		if r.StatusCode != 503 || body != "full" {
			t.Errorf("%s %q", r.Status, body)
		}
		c.closed()
	}
	if displaced.Load() != 2 || refused.Load() != 3 {
		t.Errorf("%d displaced, %d refused", displaced.Load(), refused.Load())
	}
	release()
	ask(one, "done")
	ask(two, "done")
	idlers(2)
	last := dial(t, addr) // there is room again
	last.send(get)
	ask(last, "done")
	if n := displaced.Load(); n != 3 || refused.Load() != 3 {
		t.Errorf("%d were displaced, %d refused", n, refused.Load())
	}
}

// Many at once: never more than the bound are served at the same time, and every connection gets an answer or its end.
func TestConnectionsAreBoundedAmongMany(t *testing.T) {
	s, addr, _, _, _, _ := bounded(t)
	var wg sync.WaitGroup
	var served, full atomic.Int32
	most := atomic.Int32{}
	for range 50 {
		wg.Go(func() {
			for range 10 {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(patience))
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
				b, _ := io.ReadAll(c)
				_ = c.Close()
				most.Store(max(most.Load(), int32(s.Conns())))
				switch {
				case strings.HasSuffix(string(b), "done"):
					served.Add(1)
				case strings.HasSuffix(string(b), "full"):
					full.Add(1)
				case len(b) > 0:
					t.Errorf("half an answer: %q", b)
				}
			}
		})
	}
	wg.Wait()
	if served.Load() == 0 || most.Load() > 2 {
		t.Errorf("%d were served, %d refused, at most %d at a time", served.Load(), full.Load(), most.Load())
	}
}
