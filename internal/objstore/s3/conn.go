package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// dial opens a connection on which an answer can be read even after writes to it fail.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// dialTLS is dial with TLS by cfg, which is made for each connection, so that authorities that
// were replaced count from the next one on.
func dialTLS(ctx context.Context, network, addr string, cfg *tls.Config) (net.Conn, error) {
	c, err := dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	// A certificate is checked against the host that was dialled; an address without a port is taken as it
	// is.
	if cfg.ServerName, _, err = net.SplitHostPort(addr); err != nil {
		cfg.ServerName = addr
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	secure := tls.Client(c, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return secure, nil
}

// conn swallows write errors after the server has closed its receiving side, so that an answer
// which arrived before can still be read. A server may refuse a conditional write before it has
// read the body, and close the connection. Go's transport would drop that answer and report the
// failed write, which is an unknown outcome in place of a clear refusal. If no answer has
// arrived, the read fails.
type conn struct {
	net.Conn
	deaf atomic.Bool // the server no longer receives
}

func (c *conn) Write(b []byte) (int, error) {
	if c.deaf.Load() {
		return len(b), nil
	}
	// Only these two errors mean that the peer has closed its side; any other is reported.
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		c.deaf.Store(true)
		return len(b), nil
	}
	return n, err
}
