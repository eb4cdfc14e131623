// Package http1 serves HTTP/1.1 with one goroutine a connection. It drives an http.Handler as net/http does, but reads
// and writes in the connection's own goroutine, into memory that its requests use again, and sends an answer's head and
// its small body with one write.
//
// It is stricter than net/http: a request whose end a proxy could see elsewhere is refused, and its connection closed.
// Requests and answers must not be used after the handler has returned. A request's context does not end when its client
// disconnects, as nothing is read while a handler runs; it ends when the server cuts its connections off.
package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxHead is the largest head of a request, bytes.
	maxHead = 64 << 10
	// maxUnread, bytes, is the largest rest of a body that is read to keep its connection, after the handler left it.
	maxUnread = 256 << 10
)

// timeouts bound what a client may hold up. Handlers set deadlines of their own for bodies and large answers.
type timeouts struct {
	head   time.Duration // for a request's head from its first byte, and for a new connection to send one
	idle   time.Duration // until the next request
	write  time.Duration // for a write; at least half of it
	unread time.Duration // for what a handler has left of a body
	linger time.Duration // for the client to read the last answer, after which it would get a reset
}

var defaults = timeouts{head: 10 * time.Second, idle: 2 * time.Minute, write: time.Minute, unread: 10 * time.Second, linger: 500 * time.Millisecond}

// Server serves a Handler. It can be used once.
type Server struct {
	Handler http.Handler
	Log     *slog.Logger
	// TLS is the configuration of connections; nil serves in the clear. There is no HTTP/2: it must offer http/1.1 alone.
	TLS *tls.Config
	// MaxConns bounds the connections; 0: there is no bound. At the bound a new one takes the place of the one that has
	// waited longest for a request; with a request on each of them it is answered with Full, where that can be said in the
	// clear, and closed.
	MaxConns int
	Full     []byte
	// Refused and Displaced are called for each connection that had no place, and for each that gave its own.
	Refused, Displaced func()

	timeouts timeouts // zero: the defaults

	ending  atomic.Bool // no further requests are taken
	mu      sync.Mutex
	conns   map[*conn]struct{}
	placed  int // of conns, those that have a place
	ends    refusals
	running sync.WaitGroup
}

// Serve serves until ctx ends, then lets requests finish for at most drain. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener, drain time.Duration) error {
	s.conns = map[*conn]struct{}{}
	if s.timeouts == (timeouts{}) {
		s.timeouts = defaults
	}
	base, cutOff := context.WithCancel(context.WithoutCancel(ctx))
	defer cutOff()
	stop := context.AfterFunc(ctx, func() {
		s.ending.Store(true)
		_ = l.Close()
	})
	defer stop()
	err := s.accept(base, l)
	s.ending.Store(true)
	_ = l.Close() // a second close is harmless
	s.closeIdle()
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	late := time.NewTimer(drain)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		s.closeAll()
		cutOff()
		<-done
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// accept starts a goroutine for each connection, until the listener is closed.
func (s *Server) accept(ctx context.Context, l net.Listener) error {
	const longest = time.Second
	pause := time.Duration(0)
	for {
		nc, err := l.Accept()
		var temporary interface{ Temporary() bool }
		switch {
		case err == nil:
			pause = 0
			s.start(ctx, nc)
			continue
		case s.ending.Load() || !errors.As(err, &temporary) || !temporary.Temporary():
			return err
		}
		// Such as too many open files, which connections that end will free.
		pause = min(max(2*pause, 5*time.Millisecond), longest)
		s.Log.Warn("a connection could not be accepted", "error", err, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *Server) start(ctx context.Context, nc net.Conn) {
	c := newConn(ctx, s, nc)
	if !s.admit(c) {
		s.refuseConn(nc)
		return
	}
	s.running.Go(func() {
		defer func() {
			_ = c.nc.Close()
			s.leave(c)
		}()
		if c.handshake(ctx) {
			c.serve()
		}
	})
}

// closeIdle closes the connections that wait for a request.
func (s *Server) closeIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		if c.state.CompareAndSwap(idle, closed) {
			_ = c.nc.Close()
		}
	}
}

func (s *Server) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.nc.Close()
	}
}
