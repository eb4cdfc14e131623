package web

import (
	"net/http"
	"time"
)

const (
	// writeRate is what a client must read of an answer, on average, beside the time that it
	// has for any.
	writeRate = 256 << 10
	// writePiece is written under one deadline.
	writePiece = 64 << 10
)

// LimitWrites cuts the connection of a client that does not read its answer. It must read each
// 64 KiB within timeout, and the whole answer within timeout and one second for every 256 KiB,
// counted from the first write. The time before the first write is bounded by the handler.
func LimitWrites(h http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(&limitedWriter{ResponseWriter: w, c: http.NewResponseController(w), timeout: timeout}, r)
	})
}

type limitedWriter struct {
	http.ResponseWriter
	c       *http.ResponseController
	timeout time.Duration
	end     time.Time // of all that was written; zero before the first write
}

// Unwrap is for http.ResponseController.
func (l *limitedWriter) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *limitedWriter) WriteHeader(code int) {
	l.extend(0)
	l.ResponseWriter.WriteHeader(code)
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	done := 0
	for {
		// In pieces, since one deadline for a large answer would either cut off slow honest clients or let
		// a stalled one hold the connection for long.
		piece := p[done:min(done+writePiece, len(p))]
		l.extend(len(piece))
		n, err := l.ResponseWriter.Write(piece)
		if done += n; err != nil || done == len(p) {
			return done, err
		}
	}
}

// Flush is for writers that stream.
func (l *limitedWriter) Flush() { _ = l.c.Flush() }

func (l *limitedWriter) extend(n int) {
	now := time.Now()
	if l.end.IsZero() {
		l.end = now.Add(l.timeout)
	}
	// The deadline for the whole grows with its size, so a large answer has the time that it needs.
	l.end = l.end.Add(time.Duration(n) * time.Second / writeRate)
	deadline := now.Add(l.timeout)
	if l.end.Before(deadline) {
		deadline = l.end
	}
	_ = l.c.SetWriteDeadline(deadline) // not every writer has one: those of tests do not
}
