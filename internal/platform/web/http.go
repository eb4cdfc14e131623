package web

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

// NewHTTPServer makes a server with bounds against slow clients and endless headers; bodies are
// bounded by the handlers.
func NewHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           closeAfterChunked(h),
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
	}
}

// closeAfterChunked ends a connection with the answer to a chunked request. net/http
// takes Transfer-Encoding together with Content-Length, and hides that both were
// there: a proxy that went by the length would take what follows for a request of
// another client (request smuggling). RFC 9112, section 6.1, asks for the close.
func closeAfterChunked(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
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
	// ctx has ended, so the time for draining needs a context that has not.
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	// Requests that do not end within drain are cut off.
	err := s.Shutdown(sctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	// Waits for Serve to return, so that nothing of this server runs any more when this function returns.
	if serr := <-done; err == nil && !errors.Is(serr, http.ErrServerClosed) {
		err = serr
	}
	return err
}
