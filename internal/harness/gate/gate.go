// Package gate is the network between regions that run on one machine: every connection from one region to
// another goes through it, and it cuts links in one direction or both, without root and on every system. Tests that
// may make network namespaces use internal/harness/netns, whose cuts are the kernel's.
//
// A cut is what a network does that loses every packet: bytes that were sent wait, new connections say nothing, and
// who waits gives up by its own deadline. When the link is whole again, what waited arrives, late.
package gate

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// dialTimeout bounds the connection to the other side, which is on this machine.
	dialTimeout = 5 * time.Second
	// pieceBytes and pieces bound what one direction of a connection holds back beside the kernel's buffers.
	pieceBytes = 32 << 10
	pieces     = 64
)

// Gate has the links between regions.
type Gate struct {
	names []string
	done  chan struct{}
	wg    sync.WaitGroup

	mu      sync.Mutex
	links   map[[2]string]*link
	hosts   map[string]target // of CONNECT
	proxies map[string]net.Listener
	closers map[io.Closer]struct{}
	closed  bool
}

// target is an address in a region.
type target struct{ region, addr string }

// link is one direction between two regions. whole is closed while it is.
type link struct {
	mu    sync.Mutex
	whole chan struct{}
	delay time.Duration
}

// New makes whole links between all of the regions.
func New(names ...string) (*Gate, error) {
	g := &Gate{names: names, done: make(chan struct{}), links: map[[2]string]*link{}, hosts: map[string]target{},
		proxies: map[string]net.Listener{}, closers: map[io.Closer]struct{}{}}
	for _, a := range names {
		for _, b := range names {
			if a != b {
				g.links[[2]string{a, b}] = &link{whole: closedChan()}
			}
		}
	}
	for _, a := range names {
		l, err := g.listen(func(c net.Conn) { g.connect(a, c) })
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
		g.proxies[a] = l
	}
	return g, nil
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Forward gives the loopback address at which region from reaches addr in region to.
func (g *Gate) Forward(from, to, addr string) (string, error) {
	if g.links[[2]string{from, to}] == nil {
		return "", fmt.Errorf("gate: no link from %s to %s", from, to)
	}
	l, err := g.listen(func(c net.Conn) { g.carry(from, target{to, addr}, c, c) })
	if err != nil {
		return "", err
	}
	return l.Addr().String(), nil
}

// Proxy is the URL of a region's own HTTP proxy, which only takes CONNECT to the names of Name. Programs that find
// it in HTTPS_PROXY reach other regions by names that are the same everywhere, as etcd's members need it.
func (g *Gate) Proxy(from string) string { return "http://" + g.proxies[from].Addr().String() }

// Name lets the proxies of all regions reach addr in a region as host, such as "us.regions.internal:4783".
func (g *Gate) Name(host, region, addr string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hosts[host] = target{region, addr}
}

// Cut holds back everything from one region to another.
func (g *Gate) Cut(from, to string) error {
	l := g.links[[2]string{from, to}]
	if l == nil {
		return fmt.Errorf("gate: no link from %s to %s", from, to)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.whole:
		l.whole = make(chan struct{})
	default: // it is cut already
	}
	return nil
}

// Delay lets every byte from one region to another take so long, in both directions: a round trip takes twice as long.
func (g *Gate) Delay(d time.Duration) {
	for _, l := range g.links {
		l.mu.Lock()
		l.delay = d
		l.mu.Unlock()
	}
}

// Heal makes all links whole. Delays stay.
func (g *Gate) Heal() error {
	for _, l := range g.links {
		l.mu.Lock()
		select {
		case <-l.whole:
		default:
			close(l.whole)
		}
		l.mu.Unlock()
	}
	return nil
}

// Close ends every connection.
func (g *Gate) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	close(g.done)
	for c := range g.closers {
		_ = c.Close() // what was held back is lost on purpose
	}
	g.mu.Unlock()
	g.wg.Wait()
	return nil
}

// pass waits until the link is whole; false when the gate is closed.
func (g *Gate) pass(from, to string) bool {
	if from == to {
		return true
	}
	l := g.links[[2]string{from, to}]
	l.mu.Lock()
	whole := l.whole
	l.mu.Unlock()
	select {
	case <-whole:
		return true
	case <-g.done:
		return false
	}
}

// keep registers what Close closes; false when the gate is closed already.
func (g *Gate) keep(c io.Closer) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		_ = c.Close()
		return false
	}
	g.closers[c] = struct{}{}
	return true
}

func (g *Gate) drop(c io.Closer) {
	_ = c.Close() // both directions may close it
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.closers, c)
}

// listen takes connections until Close.
func (g *Gate) listen(serve func(net.Conn)) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if !g.keep(l) {
		return nil, net.ErrClosed
	}
	g.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !g.keep(c) {
				return
			}
			g.wg.Go(func() {
				defer g.drop(c)
				serve(c)
			})
		}
	})
	return l, nil
}

// connect serves one connection to a region's proxy.
func (g *Gate) connect(from string, c net.Conn) {
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil {
		return
	}
	g.mu.Lock()
	t, known := g.hosts[req.Host]
	g.mu.Unlock()
	if req.Method != http.MethodConnect || !known || !slices.Contains(g.names, t.region) {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
		return
	}
	// The answer comes at once: what follows waits where the link is cut.
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	g.carry(from, t, c, r)
}

// carry takes a connection's bytes to its target and back, until either side ends. r has what c sends.
func (g *Gate) carry(from string, t target, c net.Conn, r io.Reader) {
	if !g.pass(from, t.region) {
		return
	}
	// Nobody may listen, as in a region that is down: then the connection ends, which its caller sees as refused.
	to, err := net.DialTimeout("tcp", t.addr, dialTimeout)
	if err != nil || !g.keep(to) {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { g.copy(to, r, from, t.region) })
	wg.Go(func() { g.copy(c, to, t.region, from) })
	wg.Wait()
	g.drop(to)
}

// piece is what one read gave, and when it arrives.
type piece struct {
	b   []byte
	due time.Time
	err error
}

// copy carries one direction, and tells the receiver of its end.
func (g *Gate) copy(to net.Conn, r io.Reader, from, region string) {
	read, stop := make(chan piece, pieces), make(chan struct{})
	defer close(stop)
	// Beside the writer, so that bytes that are on their way do not hold up those behind them. It ends with the
	// connection, which is closed when both directions have ended.
	g.wg.Go(func() {
		for {
			p := piece{b: make([]byte, pieceBytes)}
			var n int
			n, p.err = r.Read(p.b)
			p.b, p.due = p.b[:n], time.Now().Add(g.delay(from, region))
			select {
			case read <- p:
			case <-stop:
				return
			}
			if p.err != nil {
				return
			}
		}
	})
	for {
		p := <-read
		if !g.arrives(p.due) || !g.pass(from, region) {
			return
		}
		if len(p.b) > 0 {
			if _, err := to.Write(p.b); err != nil {
				p.err = err
			}
		}
		if p.err == nil {
			continue
		}
		if t, ok := to.(*net.TCPConn); ok && errors.Is(p.err, io.EOF) {
			_ = t.CloseWrite() // the other direction goes on
		} else {
			_ = to.Close()
		}
		return
	}
}

func (g *Gate) delay(from, to string) time.Duration {
	if from == to {
		return 0
	}
	l := g.links[[2]string{from, to}]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.delay
}

// arrives waits until then; false when the gate is closed.
func (g *Gate) arrives(due time.Time) bool {
	wait := time.Until(due)
	if wait <= 0 {
		return true
	}
	select {
	case <-time.After(wait):
		return true
	case <-g.done:
		return false
	}
}
