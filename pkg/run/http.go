package run

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Bounds of every HTTP server.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 64 << 10
)

// NewHTTPServer has the bounds that a server needs against slow or endless clients;
// bodies are bounded by the handlers.
func NewHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
}

// ServeHTTP serves until ctx ends, then lets requests finish for at most drain.
// TLS is on when s.TLSConfig is set.
func ServeHTTP(ctx context.Context, s *http.Server, l net.Listener, drain time.Duration) error {
	done := make(chan error, 1)
	go func() {
		if s.TLSConfig != nil {
			done <- s.ServeTLS(l, "", "")
		} else {
			done <- s.Serve(l)
		}
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err := s.Shutdown(sctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	if serr := <-done; err == nil && !errors.Is(serr, http.ErrServerClosed) {
		err = serr
	}
	return err
}
