package http1

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"time"
)

// handshake begins TLS, where the server has it, in the connection's goroutine and within the time for a first head. It
// reports whether the connection can be served.
func (c *conn) handshake(ctx context.Context) bool {
	secure, ok := c.nc.(*tls.Conn)
	if !ok {
		return true
	}
	if c.nc.SetDeadline(time.Now().Add(c.server.timeouts.head)) != nil {
		return false
	}
	if err := secure.HandshakeContext(ctx); err != nil {
		var plain tls.RecordHeaderError
		if errors.As(err, &plain) && plain.Conn != nil && looksLikeHTTP(plain.RecordHeader) {
			// Said in the clear, since nothing else would be understood. The deadline is there already.
			_, _ = io.WriteString(plain.Conn, inTheClear) // the client went away: nothing to do
		}
		c.server.Log.Debug("a TLS connection did not begin", "client", c.nc.RemoteAddr().String(), "error", err)
		return false
	}
	state := secure.ConnectionState()
	c.blank.TLS = &state
	// Reads and writes have deadlines of their own from here on.
	return c.nc.SetDeadline(time.Time{}) == nil
}

const inTheClear = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nThis port wants TLS: use https.\n"

// looksLikeHTTP reports whether what should be the head of a TLS record is the beginning of a request.
func looksLikeHTTP(head [5]byte) bool {
	for _, method := range []string{"GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO"} {
		if string(head[:]) == method {
			return true
		}
	}
	return false
}
