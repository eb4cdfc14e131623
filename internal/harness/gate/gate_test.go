package gate

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// echo answers every byte.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func newGate(t *testing.T) *Gate {
	t.Helper()
	g, err := New("eu", "us", "ap")
	must(t, err)
	t.Cleanup(func() { must(t, g.Close()) })
	return g
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// silent: nothing comes for a while.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes come over a link that is cut: %v", n, err)
	}
}

func says(t *testing.T, c net.Conn, want string) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestACutHoldsBytesBack(t *testing.T) {
	for name, cut := range map[string][2]string{"requests": {"eu", "us"}, "answers": {"us", "eu"}} {
		t.Run(name, func(t *testing.T) {
			g := newGate(t)
			at := echo(t)
			us, err := g.Forward("eu", "us", at)
			must(t, err)
			ap, err := g.Forward("eu", "ap", at)
			must(t, err)
			old, other := dial(t, us), dial(t, ap)
			_, err = old.Write([]byte("a"))
			must(t, err)
			says(t, old, "a")
			must(t, g.Cut(cut[0], cut[1]))
			must(t, g.Cut(cut[0], cut[1])) // once more is harmless
			_, err = old.Write([]byte("b"))
			must(t, err)
			silent(t, old)
			fresh := dial(t, us)
			_, err = fresh.Write([]byte("c"))
			must(t, err)
			silent(t, fresh)
			_, err = other.Write([]byte("d"))
			must(t, err)
			says(t, other, "d") // no other link is cut
			must(t, g.Heal())
			must(t, g.Heal())
			says(t, old, "b")
			says(t, fresh, "c")
		})
	}
}

func TestTheEndsOfConnectionsAreCarried(t *testing.T) {
	g := newGate(t)
	us, err := g.Forward("eu", "us", echo(t))
	must(t, err)
	c := dial(t, us)
	_, err = c.Write([]byte("x"))
	must(t, err)
	must(t, c.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "x" {
		t.Errorf("got %q, %v", got, err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, free.Close())
	nobody, err := g.Forward("us", "ap", free.Addr().String())
	must(t, err)
	down := dial(t, nobody)
	must(t, down.SetReadDeadline(time.Now().Add(time.Minute)))
	if n, err := down.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a region that is down says %d bytes, %v", n, err)
	}
}

// TestProxies: by names, as programs find it in HTTPS_PROXY.
func TestProxies(t *testing.T) {
	g := newGate(t)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(s.Close)
	g.Name("example.com:443", "us", s.Listener.Addr().String()) // the name in httptest's certificate
	ask := func(from string) (string, error) {
		proxy, err := url.Parse(g.Proxy(from))
		must(t, err)
		tr := s.Client().Transport.(*http.Transport).Clone()
		tr.Proxy = http.ProxyURL(proxy)
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr, Timeout: 2 * time.Second}).Get("https://example.com/")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), err
	}
	for _, from := range []string{"eu", "us"} { // a member reaches itself by its name, too
		if got, err := ask(from); err != nil || got != "hello" {
			t.Errorf("from %s: %q, %v", from, got, err)
		}
	}
	must(t, g.Cut("us", "eu"))
	if _, err := ask("eu"); err == nil {
		t.Error("answers come over a link that is cut")
	}
	if got, err := ask("ap"); err != nil || got != "hello" {
		t.Errorf("from ap: %q, %v", got, err)
	}
	must(t, g.Heal())
	proxy, err := url.Parse(g.Proxy("eu"))
	must(t, err)
	for _, request := range []string{"CONNECT elsewhere:1 HTTP/1.1\r\nHost: elsewhere:1\r\n\r\n", "GET http://example.com:443/ HTTP/1.1\r\nHost: example.com:443\r\n\r\n"} {
		c := dial(t, proxy.Host)
		_, err := io.WriteString(c, request)
		must(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		must(t, err)
		if resp.StatusCode != http.StatusBadGateway {
			t.Errorf("%q is answered %s", request, resp.Status)
		}
		resp.Body.Close()
	}
}

func TestUnknownRegions(t *testing.T) {
	g := newGate(t)
	if _, err := g.Forward("eu", "mars", "127.0.0.1:1"); err == nil {
		t.Error("a way to mars")
	}
	if g.Cut("eu", "eu") == nil || g.Cut("mars", "eu") == nil {
		t.Error("links that are not there are cut")
	}
}

// TestDelay: what is sent takes its time, and what is behind it does not wait for it.
func TestDelay(t *testing.T) {
	g := newGate(t)
	us, err := g.Forward("eu", "us", echo(t))
	must(t, err)
	const oneWay = 100 * time.Millisecond
	g.Delay(oneWay)
	c := dial(t, us)
	began := time.Now()
	const sent = 20
	for range sent {
		_, err := c.Write([]byte("x"))
		must(t, err)
		time.Sleep(oneWay / 10)
	}
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	got := make([]byte, sent)
	_, err = io.ReadFull(c, got[:1])
	must(t, err)
	if took := time.Since(began); took < 2*oneWay {
		t.Errorf("the first byte is back after %v", took)
	}
	_, err = io.ReadFull(c, got[1:])
	must(t, err)
	// One after the other they would take 20 round trips.
	if took := time.Since(began); took > sent*oneWay {
		t.Errorf("%d bytes took %v: each has waited for the one before", sent, took)
	}
	g.Delay(0)
}
