package s3

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// dial opens a connection whose answers outlive its sending side.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c}, nil
}

// conn hides that the server has stopped to listen: what is sent from then on goes
// nowhere, and the reading side decides. A server may refuse a conditional write before it has
// read the body and close the connection; Go's transport would drop the answer that
// has arrived and report the failed write, an unknown outcome in place of a clear refusal.
type conn struct {
	net.Conn
	deaf atomic.Bool
}

func (c *conn) Write(b []byte) (int, error) {
	if c.deaf.Load() {
		return len(b), nil
	}
	n, err := c.Conn.Write(b)
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		c.deaf.Store(true)
		return len(b), nil
	}
	return n, err
}
