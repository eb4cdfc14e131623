package ingest

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/stats"
)

// gRPC opens a stream's flow-control window to a whole message as soon as it has
// seen the message's length, so N senders of 4 MiB frames would fill N times 4 MiB
// of receive buffers before a handler sees the first byte. The gate bounds that
// where bytes come in: a connection that has received more than gateThreshold bytes
// since its last admitted message reads on only while it holds one of a few slots.
// Waiting connections are held back by TCP. With many connections the threshold falls.
//
// Slots are shared out among senders, which are principals, or addresses where there
// are none: each in its turn, and nobody has all of them. A connection without an
// authenticated call gets none.
type gate struct {
	slots   slots
	waiting atomic.Int64
	pending atomic.Int64 // of all connections
	conns   sync.Map     // remote address -> *gateConn
}

const (
	// gateThreshold leaves room for the windows of a few streams that are not being read.
	gateThreshold = 256 << 10
	// gateLow is the threshold while all connections together have more than gatePlenty.
	gateLow    = 32 << 10
	gatePlenty = 32 << 20
	// gateChatter is the largest read that counts for nothing: pings and window updates
	// of a connection that is idle for days are no message.
	gateChatter = 64
	// gateStranger is what a connection may receive before it has an authenticated call.
	gateStranger = 64 << 10
	// gateStall is how long a connection may hold a slot that others wait for without
	// receiving a byte; the more wait, the shorter, down to gateStallLeast.
	gateStall      = 10 * time.Second
	gateStallLeast = 500 * time.Millisecond
	// gateHold is how long it may hold one that others wait for at all.
	gateHold = time.Minute
)

var (
	errStalled  = errors.New("connection stalled in the middle of a large message")
	errStranger = errors.New("too much before an authenticated call")
)

func newGate(n int) *gate { return &gate{slots: newSlots(n)} }

// stall is how long a holder may receive nothing now.
func (g *gate) stall() time.Duration {
	return max(gateStall/time.Duration(1+int(g.waiting.Load())/g.slots.n), gateStallLeast)
}

// listener wraps every accepted connection.
func (g *gate) listener(l net.Listener) net.Listener { return gateListener{l, g} }

type gateListener struct {
	net.Listener
	g *gate
}

func (l gateListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	gc := &gateConn{Conn: c, g: l.g, closed: make(chan struct{}), sender: host(c.RemoteAddr())}
	l.g.conns.Store(c.RemoteAddr().String(), gc)
	return gc, nil
}

type gateConn struct {
	net.Conn
	g       *gate
	pending atomic.Int64 // bytes since the last admitted message
	paused  atomic.Int64 // streams that we do not read: the sender can't go on
	once    sync.Once
	closed  chan struct{}

	mu     sync.Mutex
	sender string // who shares the slots
	known  bool   // an authenticated call was seen
	held   string // the sender whose slot is held; "" is none
	since  time.Time
	heard  time.Time // when the last byte came
}

// host is the address without its port.
func host(a net.Addr) string {
	h, _, err := net.SplitHostPort(a.String())
	if err != nil {
		h = a.String()
	}
	return "address " + h
}

// introduced tells that the connection has an authenticated call; sender "" keeps the address.
func (c *gateConn) introduced(sender string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = true
	if sender != "" {
		c.sender = sender
	}
}

// stranger reports whether the connection has received too much for one without a call.
func (c *gateConn) stranger() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.known && c.pending.Load() >= gateStranger
}

// Read implements net.Conn.
func (c *gateConn) Read(p []byte) (int, error) {
	if c.stranger() {
		return 0, errStranger
	}
	if c.pending.Load() >= c.g.threshold() && !c.acquire() {
		return 0, errStalled
	}
	for {
		held := c.arm()
		n, err := c.Conn.Read(p)
		if n > 0 || err == nil {
			if held {
				c.mu.Lock()
				c.heard = time.Now()
				c.mu.Unlock()
			}
			if n > gateChatter {
				c.pending.Add(int64(n))
				c.g.pending.Add(int64(n))
			}
			return n, err
		}
		if !held || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if c.overstayed() {
			return 0, errStalled
		}
	}
}

// arm sets or clears the read deadline and reports whether it is set.
func (c *gateConn) arm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != "" {
		// Short, because others may come to wait meanwhile.
		_ = c.Conn.SetReadDeadline(time.Now().Add(gateStallLeast)) // a failure shows in Read
	}
	return c.held != ""
}

func (g *gate) threshold() int64 {
	if g.pending.Load() > gatePlenty {
		return gateLow
	}
	return gateThreshold
}

// forget sets the count of pending bytes to zero.
func (c *gateConn) forget() { c.g.pending.Add(-c.pending.Swap(0)) }

// overstayed reports whether the connection must be closed so that another gets its
// slot. One that waits for us only gives the slot back.
func (c *gateConn) overstayed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == "" {
		_ = c.Conn.SetReadDeadline(time.Time{})
		return false
	}
	if c.g.waiting.Load() == 0 || time.Since(c.heard) < c.g.stall() {
		return false
	}
	if c.paused.Load() > 0 {
		c.release()
		return false
	}
	return true
}

// pause tells that a stream of the connection is not read until resume is called.
func (c *gateConn) pause() (resume func()) {
	if c == nil {
		return func() {}
	}
	c.paused.Add(1)
	return func() { c.paused.Add(-1) }
}

// acquire takes a slot unless it is held; false when the connection was closed.
func (c *gateConn) acquire() bool {
	c.mu.Lock()
	held, long, sender := c.held != "", c.held != "" && time.Since(c.since) > gateHold, c.sender
	c.mu.Unlock()
	if held {
		return !long || c.g.waiting.Load() == 0 || c.paused.Load() > 0
	}
	c.g.waiting.Add(1)
	defer c.g.waiting.Add(-1)
	if !c.g.slots.take(sender, c.closed) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.since, c.heard = sender, time.Now(), time.Now()
	select {
	case <-c.closed: // Close looked before we held it
		c.release()
		return false
	default:
	}
	if c.pending.Load() < c.g.threshold() { // admitted while we waited
		c.release()
	}
	return true
}

// release gives the slot back; c.mu is held.
func (c *gateConn) release() {
	if c.held != "" {
		_ = c.Conn.SetReadDeadline(time.Time{}) // a failure shows in Read
		c.g.slots.give(c.held)
		c.held = ""
	}
}

// admitted forgets what was received so far.
func (c *gateConn) admitted() {
	if c == nil || c.pending.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget()
	c.release()
}

// Close implements net.Conn.
func (c *gateConn) Close() error {
	c.once.Do(func() {
		c.g.conns.CompareAndDelete(c.RemoteAddr().String(), c)
		close(c.closed)
		c.mu.Lock()
		c.forget()
		c.release()
		c.mu.Unlock()
	})
	return c.Conn.Close()
}

type gateKey struct{}

// connOf is the connection of a call; nil for other listeners.
func connOf(ctx context.Context) *gateConn {
	c, _ := ctx.Value(gateKey{}).(*gateConn)
	return c
}

// gateStats ties calls to their connections.
type gateStats struct{ g *gate }

// TagConn implements stats.Handler.
func (h gateStats) TagConn(ctx context.Context, i *stats.ConnTagInfo) context.Context {
	if c, ok := h.g.conns.Load(i.RemoteAddr.String()); ok {
		return context.WithValue(ctx, gateKey{}, c)
	}
	return ctx
}

// HandleConn implements stats.Handler.
func (gateStats) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements stats.Handler.
func (gateStats) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler. A call that ended holds nothing any more.
func (gateStats) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.End); ok {
		connOf(ctx).admitted()
	}
}
