package s3

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"
)

// FuzzAnswers sends the same request through our transport and through Go's to a server that
// answers with any bytes. Whatever is a whole answer for one is the same for the other; what ours
// takes for an answer, Go's does, too. The next request on ours gets the answer to itself.
func FuzzAnswers(f *testing.F) {
	for _, a := range []string{
		created,
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\nx",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
		"HTTP/1.0 200 OK\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc",
		"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 304 Not Modified\r\nETag: \"e\"\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 412 x\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 103 x\r\n\r\nHTTP/1.1 103 x\r\n\r\n",
		"HTTP/1.1 101 x\r\nUpgrade: y\r\n\r\n",
		"HTTP/1.1 200\r\nA\r\n\r\n", "HTTP/9.9 200 OK\r\n\r\n", "garbage\r\n\r\n", "",
	} {
		for _, method := range []byte{0, 1, 2, 3} {
			f.Add([]byte(a), method, true)
			f.Add([]byte(a), method, false)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { l.Close() })
	const marked = "HTTP/1.1 200 OK\r\nX-Next: yes\r\nContent-Length: 0\r\n\r\n"
	type order struct {
		answer []byte
		closes bool
	}
	orders := make(chan order, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					if r.URL.Path == "/next" {
						io.WriteString(c, marked)
						continue
					}
					o := <-orders
					c.Write(o.answer)
					if o.closes {
						return
					}
				}
			}()
		}
	}()
	base := &url.URL{Scheme: "http", Host: l.Addr().String()}
	f.Fuzz(func(t *testing.T, answer []byte, m byte, closes bool) {
		if len(answer) > 32<<10 {
			return
		}
		cfg := testConfig(base.String())
		theirs, err := cfg.transport()
		must(t, err)
		defer theirs.CloseIdleConnections()
		rt, err := cfg.roundTripper(base)
		must(t, err)
		ours := rt.(*direct)
		defer ours.CloseIdleConnections()
		method := []string{"GET", "PUT", "HEAD", "DELETE"}[m%4]
		ask := func(rt http.RoundTripper, path string) (status int, h http.Header, b []byte, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			u := *base
			u.Path = path
			r := (&http.Request{Method: method, URL: &u, Header: http.Header{}, ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx)
			if method == "PUT" {
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader([]byte("body"))), 4
			}
			resp, err := rt.RoundTrip(r)
			if err != nil {
				return 0, nil, nil, err
			}
			defer resp.Body.Close()
			b, err = io.ReadAll(io.LimitReader(resp.Body, 64<<10))
			return resp.StatusCode, resp.Header, b, err
		}
		first := func(rt http.RoundTripper) (int, http.Header, []byte, error) {
			for len(orders) > 0 {
				<-orders
			}
			orders <- order{answer, closes}
			return ask(rt, "/first")
		}
		s1, h1, b1, err1 := first(ours)
		// Whatever the first request left behind is not the answer to the next.
		if status, h, _, err := ask(ours, "/next"); err == nil && (status != 200 || h.Get("X-Next") != "yes") {
			t.Fatalf("%q: the next request got %d %v", answer, status, h)
		}
		// The same for plain requests, whose answers are parsed here where they have the usual form.
		for len(orders) > 0 {
			<-orders
		}
		orders <- order{answer, closes}
		out := method + " /first HTTP/1.1\r\nHost: h\r\n\r\n"
		if method == "PUT" {
			out = method + " /first HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody"
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		p, err := ours.ask(ctx, place{base.Scheme, base.Host}, &plainRequest{method: method, limit: 64 << 10}, []byte(out))
		cancel()
		if whole := err == nil && p.err == nil && !p.unread; whole && err1 == nil {
			if p.status != s1 || method != "HEAD" && !bytes.Equal(p.body, b1) || p.etag != h1.Get("Etag") || p.checksum != h1.Get("X-Amz-Checksum-Sha256") {
				t.Fatalf("%s, closes %v, %q: a plain request got %+v, another one %d %v %q", method, closes, answer, p, s1, h1, b1)
			}
		} else if whole {
			t.Fatalf("%s, closes %v, %q: a plain request got %+v, another one %v", method, closes, answer, p, err1)
		}
		if status, h, _, err := ask(ours, "/next"); err == nil && (status != 200 || h.Get("X-Next") != "yes") {
			t.Fatalf("%q: the request after a plain one got %d %v", answer, status, h)
		}
		s2, h2, b2, err2 := first(theirs)
		if s1 == http.StatusSwitchingProtocols || s2 == http.StatusSwitchingProtocols {
			return
		}
		if (err1 == nil) != (err2 == nil) || s1 != s2 {
			t.Fatalf("%s, closes %v, %q: ours %d %v, Go's %d %v", method, closes, answer, s1, err1, s2, err2)
		}
		if err1 == nil && (!bytes.Equal(b1, b2) || len(h1) != len(h2)) {
			t.Fatalf("%q: ours %v %q, Go's %v %q", answer, h1, b1, h2, b2)
		}
	})
}
