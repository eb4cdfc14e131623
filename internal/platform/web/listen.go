package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
)

// HTTPConfig is where, and under which names, a service is served by HTTP.
type HTTPConfig struct {
	Listen string `koanf:"listen" help:"host:port to listen on" check:"listen"`
	// Hosts are for a proxy on this machine that passes its own name on.
	Hosts          []string `koanf:"hosts" help:"names under which requests are taken: on loopback beside its own names, elsewhere instead of all; IP addresses always are"`
	MaxConnections int      `koanf:"max_connections" help:"most connections at once, half of them from one address; more are closed"`
}

// GRPCConfig is where gRPC is served.
type GRPCConfig struct {
	Listen         string `koanf:"listen" help:"host:port to listen on" check:"listen"`
	MaxConnections int    `koanf:"max_connections" help:"most connections at once, half of them from one address; more are closed"`
}

// DefaultMaxConnections of one listener.
const DefaultMaxConnections = 2048

// DefaultHTTP listens on an address.
func DefaultHTTP(address string) HTTPConfig {
	return HTTPConfig{Listen: address, MaxConnections: DefaultMaxConnections}
}

// DefaultGRPC listens on an address.
func DefaultGRPC(address string) GRPCConfig {
	return GRPCConfig{Listen: address, MaxConnections: DefaultMaxConnections}
}

// Validate checks names and the bound.
func (c HTTPConfig) Validate() error {
	errs := []error{checkConnections("http", c.MaxConnections)}
	for _, h := range c.Hosts {
		if h == "" || strings.ContainsAny(h, ":/ ") {
			errs = append(errs, fmt.Errorf("http.hosts %q: want a name without scheme and port", h))
		}
	}
	return errors.Join(errs...)
}

// Validate checks the bound.
func (c GRPCConfig) Validate() error { return checkConnections("grpc", c.MaxConnections) }

func checkConnections(section string, n int) error {
	if n < 2 {
		return fmt.Errorf("%s.max_connections %d: want at least 2", section, n)
	}
	return nil
}

// Collide reports whether two addresses that are listened on, as host:port, are one: then the
// second can't be opened. Port 0 is a free one each time. Go listens on all addresses, of IPv4
// and IPv6, where the host is empty or unspecified.
func Collide(a, b string) bool {
	ahost, aport, aerr := net.SplitHostPort(a)
	bhost, bport, berr := net.SplitHostPort(b)
	if aerr != nil || berr != nil || aport != bport || aport == "0" {
		return false
	}
	aip, bip := listenIP(ahost), listenIP(bhost)
	if aip == nil || bip == nil { // names, which only a resolver knows
		return strings.EqualFold(ahost, bhost)
	}
	return aip.Equal(bip) || aip.IsUnspecified() || bip.IsUnspecified()
}

func listenIP(host string) net.IP {
	switch host {
	case "":
		return net.IPv6unspecified
	case "localhost":
		return net.IPv4(127, 0, 0, 1)
	}
	return net.ParseIP(host)
}

// Open listens, within the bounds.
func (c HTTPConfig) Open(ctx context.Context) (net.Listener, error) {
	return listen(ctx, c.Listen, c.MaxConnections)
}

// Open listens, within the bounds.
func (c GRPCConfig) Open(ctx context.Context) (net.Listener, error) {
	return listen(ctx, c.Listen, c.MaxConnections)
}

// Server serves h to requests for hosts that are this service's.
func (c HTTPConfig) Server(h http.Handler) *http.Server {
	return NewHTTPServer(CheckHosts(c.Listen, c.Hosts, h))
}

func listen(ctx context.Context, address string, most int) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return LimitConnections(l, most), nil
}

// LimitConnections closes connections beyond most, and beyond half of that from one address, as soon
// as they are accepted. Keeping them waiting would hold back others, and a client whose connection
// is closed tries another server.
func LimitConnections(l net.Listener, most int) net.Listener {
	return &limitedListener{Listener: l, most: most, from: map[string]int{}}
}

type limitedListener struct {
	net.Listener
	most int

	mu   sync.Mutex
	all  int
	from map[string]int // by address
}

// Accept gives the next connection within the bounds.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := c.RemoteAddr().String()
		// Counted per host: every connection of a client has another port.
		if host, _, err := net.SplitHostPort(address); err == nil {
			address = host
		}
		if l.enter(address) {
			return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { l.leave(address) })}, nil
		}
		_ = c.Close() // it is not served
	}
}

func (l *limitedListener) enter(address string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Half for one address, so that one client cannot shut out all others.
	if l.all >= l.most || l.from[address] >= l.most/2 {
		return false
	}
	l.all++
	l.from[address]++
	return true
}

func (l *limitedListener) leave(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	// Addresses without a connection are dropped, or the map would grow with every client that ever came.
	if l.from[address]--; l.from[address] == 0 {
		delete(l.from, address)
	}
}

type limitedConn struct {
	net.Conn
	leave func()
}

// Close frees the connection's place.
func (c *limitedConn) Close() error {
	c.leave()
	return c.Conn.Close()
}
