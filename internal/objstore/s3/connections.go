package s3

import (
	"bufio"
	"context"
	"errors"
	"math"
	"net"
	"os"
	"sync"
	"time"
)

// place is where connections lead to.
type place struct{ scheme, host string }

// connections is a pool of connections. At most as many are open as requests may run at the same
// time, since a new one is opened only when none is idle.
type connections struct {
	open  func(context.Context, place) (net.Conn, error)
	slots chan struct{} // one for each running request

	mu     sync.Mutex
	idle   map[place][]*pooled // the one used last at the end
	sweep  *time.Timer         // closes what was idle for long; nil while none is idle
	closed bool                // connections that come back are closed, until the next request
}

func (p *connections) init(most int, open func(context.Context, place) (net.Conn, error)) {
	p.open, p.slots, p.idle = open, make(chan struct{}, most), map[place][]*pooled{}
}

// pooled is one connection.
type pooled struct {
	net.Conn
	pool   *connections
	place  place
	in     *bufio.Reader
	left   int64 // bytes that may still be read from the connection
	socket *socket
	reused bool
	since  time.Time // when it became idle
	// interrupt ends reads and writes. The connection is not used again.
	interrupt func()
	ends      time.Time // the deadline of reads and writes, which stays behind its request; zero: none
}

// Read implements io.Reader, for in.
func (c *pooled) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errBigHeader
	}
	if int64(len(b)) > c.left {
		b = b[:c.left]
	}
	n, err := c.Conn.Read(b)
	c.left -= int64(n)
	return n, err
}

// errStale: a connection that was idle can't be used, and nothing was written to it.
var errStale = errors.New("s3: the server has closed the connection, or has sent what nobody asked for")

// take gives a connection for one request; release must follow. With fresh it is a new one. Of one that was used before the
// caller checks that it is quiet.
func (p *connections) take(ctx context.Context, to place, fresh bool) (*pooled, error) {
	select {
	case p.slots <- struct{}{}:
	default:
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if c := p.pop(to); c != nil {
		if !fresh {
			c.reused = true
			return c, nil
		}
		_ = c.Close() // otherwise there could be more connections than slots
	}
	conn, err := p.open(ctx, to)
	if err != nil {
		<-p.slots
		return nil, err
	}
	c := &pooled{Conn: conn, pool: p, place: to, left: math.MaxInt64}
	c.in = bufio.NewReader(c)
	c.interrupt = func() { _ = c.SetDeadline(aLongTimeAgo) }
	if c.socket, err = newSocket(conn); err != nil {
		c.release(false)
		return nil, err
	}
	return c, nil
}

// quiet reports whether nothing has come since the last answer.
func (c *pooled) quiet() bool {
	// A deadline that has passed would end the check. One that has not is replaced by the next request.
	if !c.ends.IsZero() && !time.Now().Before(c.ends) {
		c.setDeadline(time.Time{})
	}
	if !c.socket.quiet() {
		return false
	}
	if c.socket.plain {
		return true
	}
	// TLS may have read records behind the answer, of which neither the socket nor in knows. A read that must not
	// wait gives them.
	if c.SetReadDeadline(aLongTimeAgo) != nil {
		return false
	}
	_, err := c.in.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Time{}) == nil
}

// pop takes the connection that was used last: the least likely one to be closed by the server.
func (p *connections) pop(to place) *pooled {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
	list := p.idle[to]
	if len(list) == 0 {
		return nil
	}
	c := list[len(list)-1]
	list[len(list)-1] = nil
	p.idle[to] = list[:len(list)-1]
	return c
}

// release ends the use by a request. Only a connection that is clean is kept.
func (c *pooled) release(clean bool) {
	if !clean || !c.pool.keep(c) {
		_ = c.Close()
	}
	<-c.pool.slots
}

func (p *connections) keep(c *pooled) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	c.since = time.Now()
	p.idle[c.place] = append(p.idle[c.place], c)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(idleTimeout/2, p.closeOld)
	}
	return true
}

// closeOld closes the connections that were idle for half of idleTimeout or more; as it runs once
// in that time, none is idle for longer than idleTimeout.
func (p *connections) closeOld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	left, now := false, time.Now()
	for to, list := range p.idle {
		old := 0
		for old < len(list) && now.Sub(list[old].since) >= idleTimeout/2 {
			_ = list[old].Close()
			old++
		}
		if list = append([]*pooled(nil), list[old:]...); len(list) == 0 {
			delete(p.idle, to)
			continue
		}
		p.idle[to], left = list, true
	}
	if p.sweep = nil; left {
		p.sweep = time.AfterFunc(idleTimeout/2, p.closeOld)
	}
}

// CloseIdleConnections closes the connections that no request uses, and those of running requests
// at their end.
func (p *connections) CloseIdleConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, list := range p.idle {
		for _, c := range list {
			_ = c.Close()
		}
	}
	clear(p.idle)
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
}
