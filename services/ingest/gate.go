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
// where bytes are received: a connection that has received more than gateThreshold bytes
// since its last admitted message continues to read only while it holds one of a few slots.
// Connections that wait do not read, so TCP stops their senders. With much pending data the
// threshold is lower.
//
// Slots are shared among senders, which are principals, or addresses if there are no
// credentials: in turns, and no sender can have all of them. A connection without an
// authenticated call gets none.
type gate struct {
	slots   slots
	waiting atomic.Int64
	pending atomic.Int64 // bytes of all connections since their last admitted message
	conns   sync.Map     // remote address -> *gateConn
}

const (
	// gateThreshold leaves room for the windows of a few streams that are not being read.
	gateThreshold = 256 << 10
	// gateLow is the threshold while all connections together have more than gatePlenty.
	gateLow    = 32 << 10
	gatePlenty = 32 << 20
	// gateSmallRead is the largest read, in bytes, that is not counted: pings and window
	// updates of a connection that is idle for days would otherwise add up to a message.
	gateSmallRead = 64
	// gateUnauthenticated is how many bytes a connection may receive before its first authenticated call.
	gateUnauthenticated = 64 << 10
	// gateStall is how long a connection may hold a slot without receiving a byte while
	// others wait. The more connections wait, the shorter it is, down to gateStallLeast.
	gateStall      = 10 * time.Second
	gateStallLeast = 500 * time.Millisecond
	// gateHold is how long a connection may hold a slot in all while others wait.
	gateHold = time.Minute
)

var (
	errStalled         = errors.New("connection stalled in the middle of a large message")
	errUnauthenticated = errors.New("too much before an authenticated call")
)

func newGate(n int) *gate { return &gate{slots: newSlots(n)} }

// stall is how long the holder of a slot may receive nothing, at the present number of waiters.
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
	paused  atomic.Int64 // streams that the collector does not read now, so their sender can't continue
	once    sync.Once
	closed  chan struct{}

	mu     sync.Mutex
	sender string // by whom slots are shared
	known  bool   // the connection had an authenticated call
	held   string // the sender to whom the held slot is charged; "" is no slot
	since  time.Time
	heard  time.Time // when the last byte was received
}

// host is the sender of an unauthenticated connection: its address without the port.
func host(a net.Addr) string {
	h, _, err := net.SplitHostPort(a.String())
	if err != nil {
		h = a.String()
	}
	return "address " + h
}

// authenticated records that the connection had an authenticated call of a sender; "" keeps the address as sender.
func (c *gateConn) authenticated(sender string) {
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

// overUnauthenticatedLimit reports whether the connection has received too much without an authenticated call.
func (c *gateConn) overUnauthenticatedLimit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.known && c.pending.Load() >= gateUnauthenticated
}

// Read implements net.Conn.
func (c *gateConn) Read(p []byte) (int, error) {
	if c.overUnauthenticatedLimit() {
		return 0, errUnauthenticated
	}
	if c.pending.Load() >= c.g.threshold() && !c.acquire() {
		return 0, errStalled
	}
	for {
		held := c.armDeadline()
		n, err := c.Conn.Read(p)
		if n > 0 || err == nil {
			if held {
				c.mu.Lock()
				c.heard = time.Now()
				c.mu.Unlock()
			}
			if n > gateSmallRead {
				c.pending.Add(int64(n))
				c.g.pending.Add(int64(n))
			}
			return n, err
		}
		// A deadline that armDeadline set is no error of the connection: it only makes Read return, so
		// that the slot's time can be checked.
		if !held || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if c.mustClose() {
			return 0, errStalled
		}
	}
}

// armDeadline sets the read deadline while a slot is held, and reports whether it did.
func (c *gateConn) armDeadline() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != "" {
		// A short deadline, because others may start to wait during the read.
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

// forget resets the count of pending bytes.
func (c *gateConn) forget() { c.g.pending.Add(-c.pending.Swap(0)) }

// mustClose reports whether the connection must be closed so that another one gets its slot.
// A connection whose streams the collector does not read only loses the slot: its sender is
// not the cause of the delay.
func (c *gateConn) mustClose() bool {
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

// pause records that a stream of the connection is not read until resume is called.
func (c *gateConn) pause() (resume func()) {
	if c == nil {
		return func() {}
	}
	c.paused.Add(1)
	return func() { c.paused.Add(-1) }
}

// acquire takes a slot, unless the connection has one; false if the connection was closed or has held its slot for too long.
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
	case <-c.closed: // Close ran before the slot was taken, so nobody else would release it
		c.release()
		return false
	default:
	}
	if c.pending.Load() < c.g.threshold() { // a message was admitted while this waited
		c.release()
	}
	return true
}

// release returns the slot, if there is one. The caller holds c.mu.
func (c *gateConn) release() {
	if c.held != "" {
		_ = c.Conn.SetReadDeadline(time.Time{}) // a failure shows in Read
		c.g.slots.give(c.held)
		c.held = ""
	}
}

// admitted resets the count of received bytes and returns the slot: a message was admitted, and its room is accounted for elsewhere.
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

// connOf returns the connection of a call; nil if the gate does not wrap its listener.
func connOf(ctx context.Context) *gateConn {
	c, _ := ctx.Value(gateKey{}).(*gateConn)
	return c
}

// gateStats is the stats handler through which a call finds its gateConn.
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

// HandleRPC implements stats.Handler. A call that has ended occupies no receive buffers.
func (gateStats) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.End); ok {
		connOf(ctx).admitted()
	}
}
