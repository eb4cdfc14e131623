package rpc

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"lightmetrics.dev/lightmetrics/internal/platform/telemetry"
)

// one is a listener with one connection.
type one struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l one) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l one) Close() error   { close(l.closed); return nil }
func (l one) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// TestIdleConnectionsAreClosed: those that say nothing, and those that say hello, answer
// every ping, and make no call.
func TestIdleConnectionsAreClosed(t *testing.T) {
	for name, c := range map[string]struct {
		hello bool
		after time.Duration
	}{"silent": {false, handshakeTimeout}, "without calls": {true, idleTimeout}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := NewServer(ServerTLS{}, nil, nil, telemetry.Discard())
				if err != nil {
					t.Fatal(err)
				}
				client, server := net.Pipe()
				l := one{make(chan net.Conn, 1), make(chan struct{})}
				l.conn <- server
				go func() { _ = s.Server.Serve(l) }() // until Stop
				defer s.Stop()
				start := time.Now()
				if c.hello {
					fr := http2.NewFramer(client, client)
					go func() {
						_, _ = io.WriteString(client, http2.ClientPreface)
						_ = fr.WriteSettings()
					}()
					for {
						f, err := fr.ReadFrame()
						if err != nil {
							break
						}
						if p, ok := f.(*http2.PingFrame); ok && !p.IsAck() {
							_ = fr.WritePing(true, p.Data)
						}
					}
				} else {
					_, _ = io.Copy(io.Discard, client)
				}
				if took := time.Since(start); took < c.after || took > c.after+time.Minute {
					t.Errorf("closed after %v, want %v", took, c.after)
				}
			})
		})
	}
}
