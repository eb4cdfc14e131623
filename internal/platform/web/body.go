package web

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"time"
)

// bodyTimeout bounds the time that a request's body takes to arrive. What is bounded by
// MaxBody is small: a client that needs longer holds the connection, not data.
const bodyTimeout = 20 * time.Second

// boundBody gives the body of a request a deadline, whoever reads it: its handler, or the
// server, which reads what a refused request has left. It gives a copy of the request: the
// server knows by the type of its own body when not to wait for the rest.
func boundBody(w http.ResponseWriter, r *http.Request) *http.Request {
	// -1, an unknown length, has a body and gets the deadline.
	if r.ContentLength == 0 {
		return r
	}
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(bodyTimeout)) // not supported by a recorder in a test
	r = r.WithContext(r.Context())
	r.Body = &timedBody{ReadCloser: r.Body, c: c}
	return r
}

// timedBody removes the deadline once the body was read. The server continues to read, to notice a
// client that disconnects; with the deadline, that read would end the request's context.
type timedBody struct {
	io.ReadCloser
	c *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.c.SetReadDeadline(time.Time{})
	}
	return n, err
}

// LimitBody is http.MaxBytesReader. That one asks the server's own writer, and no wrapper of it,
// to wait a moment before it closes the connection, so that a client that is still sending
// reads the refusal.
func LimitBody(w http.ResponseWriter, body io.ReadCloser, limit int64) io.ReadCloser {
	for {
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return http.MaxBytesReader(w, body, limit)
		}
		w = inner.Unwrap()
	}
}

// readBody reads the body, at most limit bytes, before next is called: a body that
// trickles in holds a connection for a bounded time, and nothing else.
func readBody(next http.Handler, limit int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Before the handler, so that a slow client holds no place in a limit of concurrent requests.
		b, err := io.ReadAll(LimitBody(w, r.Body, limit))
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			WriteError(w, http.StatusRequestEntityTooLarge, "body_too_large", err.Error(), map[string]any{"max_bytes": limit})
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			closeAfter(w, r)
			WriteError(w, http.StatusRequestTimeout, "body_timeout", "the body took longer than "+bodyTimeout.String(), nil)
			return
		case err != nil:
			closeAfter(w, r)
			WriteError(w, http.StatusBadRequest, "body_truncated", "the body ended early: "+err.Error(), nil)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(b))
		next.ServeHTTP(w, r)
	})
}

func closeAfter(w http.ResponseWriter, r *http.Request) {
	// HTTP/2 resets the one stream and keeps the connection.
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // the rest of the body is not read
	}
}

// withoutBody hides a body from a handler that takes none.
func withoutBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			closeAfter(w, r)
			r.Body = http.NoBody
		}
		next.ServeHTTP(w, r)
	})
}
