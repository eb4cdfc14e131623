package send_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/agent/queue"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/platform/vfs/memfs"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// world is the sender of one agent and the collectors of several regions, in a bubble of synctest: the sender and the gRPC servers
// are real ones, the network between them is in memory, and the clock is the bubble's, so that hours take milliseconds.
// All collectors share one store, as regions share the identity linearizer.
type world struct {
	*fixture
	net   *network
	began time.Time
}

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &fixture{t: t, ctx: ctx, store: sendtest.NewStore(), reg: prometheus.NewRegistry(), cfg: send.DefaultConfig(), frames: map[identity.Batch][]byte{},
			encoder: frame.NewEncoder(frame.Options{})} // one of its own: those that are shared have channels from outside of the bubble
		f.cfg.Collectors = nil
		var err error
		if f.queue, err = queue.Open(memfs.New(), "q", queue.Options{Agent: "a1", MaxBytes: 64 << 20, SegmentBytes: 1 << 20, Policy: queue.RefuseNew, Now: time.Now, Log: slog.New(slog.DiscardHandler)}); err != nil {
			t.Fatal(err)
		}
		w := &world{fixture: f, net: newNetwork(), began: time.Now()}
		f.dialer = w.net.dial
		// Ends run from the last to the first: senders, which run registers later, before servers, before the queue.
		t.Cleanup(func() { _ = f.queue.Close() })
		t.Cleanup(cancel)
		t.Cleanup(w.net.stop)
		test(t, w)
	})
}

// region is one collector of a region.
type region struct {
	*sendtest.Collector
	w       *world
	address string
	mu      sync.Mutex
	// answer replaces the store's answer where it returns one. It sleeps to answer late; each frame has a goroutine.
	answer func(b []byte) *ingestv1.BatchResult
	late   sync.WaitGroup // answers that are still to be given
	// frames that came, in their order.
	frames []received
}

type received struct {
	at time.Duration // since the test began
	id identity.Batch
}

// region starts a collector at an address.
func (w *world) region(address string) *region {
	w.t.Helper()
	r := &region{Collector: &sendtest.Collector{Store: w.store}, w: w, address: address}
	r.OnFrame = r.take
	r.Serve(w.net.listen(address))
	w.t.Cleanup(func() {
		r.Stop()
		r.late.Wait()
	})
	return r
}

func (r *region) take(b []byte, reply func(*ingestv1.BatchResult)) error {
	info, err := frame.Inspect(b, frame.Limits{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.frames = append(r.frames, received{time.Since(r.w.began), info.Identity})
	answer := r.answer
	r.mu.Unlock()
	r.late.Go(func() {
		var out *ingestv1.BatchResult
		if answer != nil {
			out = answer(b)
		}
		if out == nil {
			out = r.w.store.Accept(b)
		}
		if out != never {
			reply(out)
		}
	})
	return nil
}

// never is the answer that is not given.
var never = &ingestv1.BatchResult{}

// answers sets how frames are answered from now on; nil has the store decide.
func (r *region) answers(fn func(b []byte) *ingestv1.BatchResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = fn
}

// retries has every frame answered RETRY, at once, as a collector without a way to the linearizer does.
func retries(b []byte) *ingestv1.BatchResult {
	a := sendtest.Answer(b, retry, "LINEARIZER_UNAVAILABLE")
	a.RetryDelay = durationpb.New(time.Second)
	return a
}

func (r *region) got() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.frames)
}

// feed queues a batch every interval for as long as d, and returns them.
func (w *world) feed(d, interval time.Duration) (out []queue.Entry) {
	w.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		out = append(out, w.append(1)...)
		time.Sleep(interval)
	}
	return out
}

// list is the list in use.
func (w *world) list() send.List { return w.sender.Status().List }

// waitList sleeps until the list is in use, at most d, and gives how long that was.
func (w *world) waitList(list send.List, d time.Duration) time.Duration {
	w.t.Helper()
	began := time.Now()
	for w.list() != list {
		if time.Since(began) > d {
			w.t.Fatalf("still on %s after %s: %+v", w.list(), d, w.sender.Status())
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(began)
}

// checkAll drains, and checks that everything that was queued is accepted with its bytes, and nothing else.
func (w *world) checkAll() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, time.Hour)
	defer cancel()
	if err := w.sender.Flush(ctx, w.queue.Last()); err != nil {
		w.t.Fatalf("not drained: %v; %d pending; %+v", err, w.queue.Stats().Pending, w.sender.Status())
	}
	got, _ := w.store.Accepted()
	if len(got) != len(w.frames) {
		w.t.Errorf("%d batches are accepted, %d were queued", len(got), len(w.frames))
	}
	for id, b := range w.frames {
		if !bytes.Equal(w.store.Frame(id), b) {
			w.t.Errorf("%s is not accepted with its bytes", id)
		}
	}
	if n := w.answers("identity_conflict") + w.answers("rejected"); n != 0 {
		w.t.Errorf("%v conflicts or rejects", n)
	}
}

// repeated are frames that came twice or more often, with how often.
func repeated(regions ...*region) map[identity.Batch]int {
	n := map[identity.Batch]int{}
	for _, r := range regions {
		for _, f := range r.got() {
			n[f.id]++
		}
	}
	for id, k := range n {
		if k < 2 {
			delete(n, id)
		}
	}
	return n
}

// network is in memory. An address may be up, down (connections are refused, and those there were are closed) or cut (they are silent).
type network struct {
	mu    sync.Mutex
	hosts map[string]*host
}

type host struct {
	listener *bufconn.Listener
	state    linkState
	open     chan struct{} // closed while bytes pass
	conns    map[*memConn]bool
}

type linkState int

const (
	up linkState = iota
	down
	cut
)

func newNetwork() *network { return &network{hosts: map[string]*host{}} }

func (n *network) listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &host{listener: bufconn.Listen(1 << 20), open: make(chan struct{}), conns: map[*memConn]bool{}}
	close(h.open)
	n.hosts[address] = h
	return h.listener
}

// set changes the state of links to addresses.
func (n *network) set(s linkState, addresses ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addresses {
		h := n.hosts[a]
		if (h.state == cut) != (s == cut) {
			if s == cut {
				h.open = make(chan struct{})
			} else {
				close(h.open)
			}
		}
		h.state = s
		if s == down {
			for c := range h.conns {
				go c.Close() // what waits for the lock of this network must not wait for that
			}
		}
	}
}

func (n *network) passes(h *host) <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return h.open
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	h := n.hosts[address]
	state := down
	if h != nil {
		state = h.state
	}
	n.mu.Unlock()
	switch state {
	case down:
		return nil, errors.New("connection refused")
	case cut: // as a TCP connection whose first packet is lost
		<-ctx.Done()
		return nil, ctx.Err()
	}
	conn, err := h.listener.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c := &memConn{Conn: conn, net: n, host: h, closed: make(chan struct{})}
	n.mu.Lock()
	h.conns[c] = true
	n.mu.Unlock()
	return c, nil
}

// stop closes every connection, so that no goroutine is left in the bubble.
func (n *network) stop() {
	n.mu.Lock()
	var all []*memConn
	for _, h := range n.hosts {
		for c := range h.conns {
			all = append(all, c)
		}
	}
	n.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

// memConn is the sender's end of a connection.
type memConn struct {
	net.Conn
	net    *network
	host   *host
	once   sync.Once
	closed chan struct{}

	writing sync.Mutex
	held    []byte // written while bytes did not pass
}

// pass waits until bytes pass.
func (c *memConn) pass() error {
	for {
		open := c.net.passes(c.host)
		select {
		case <-open:
			return nil
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

func (c *memConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if perr := c.pass(); perr != nil {
		return 0, perr
	}
	return n, err
}

// Write takes what a cut holds back, as a socket's buffer does, and gives it on when bytes pass again.
func (c *memConn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	case <-c.net.passes(c.host):
		if len(c.held) == 0 {
			return c.Conn.Write(b)
		}
	default:
	}
	if c.held = append(c.held, b...); len(c.held) == len(b) {
		go c.release()
	}
	return len(b), nil
}

func (c *memConn) release() {
	if c.pass() != nil {
		return
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = c.Conn.Write(c.held) // who reads from the other end sees an error
	c.held = nil
}

func (c *memConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.net.mu.Lock()
		delete(c.host.conns, c)
		c.net.mu.Unlock()
	})
	return c.Conn.Close()
}
