package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// text is a connection whose client has sent in and nothing more.
type text struct {
	net.Conn
	in io.Reader
}

func (c text) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c text) SetReadDeadline(time.Time) error  { return nil }
func (c text) SetWriteDeadline(time.Time) error { return nil }
func (c text) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// parsed gives what the parser reads from the bytes: the request, its body and what is left.
func parsed(in []byte) (r *http.Request, body, rest []byte, err error) {
	// In small pieces, as a network may deliver them.
	c := newConn(context.Background(), &Server{Log: slog.New(slog.DiscardHandler), timeouts: defaults}, text{in: &pieces{in, 7}})
	head, err := c.readHead(true)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := c.parse(head); err != nil {
		return nil, nil, nil, err
	}
	c.body.continueDue = false // there is nobody to send it to
	if body, err = io.ReadAll(c.request.Body); err != nil {
		return &c.request, nil, nil, nil
	}
	if len(c.request.TransferEncoding) == 0 { // otherwise the rest is never used
		rest, _ = io.ReadAll(readerFunc(c.read))
	}
	return &c.request, body, rest, nil
}

type pieces struct {
	b []byte
	n int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.b[:min(p.n, len(p.b))])
	p.b = p.b[n:]
	return n, nil
}

// stricter are the reasons for which a request is refused that net/http takes.
var stricter = map[string]func(in []byte, r *http.Request) bool{
	"a line of the head does not end with CRLF": func(in []byte, _ *http.Request) bool {
		return bytes.Contains(bytes.ReplaceAll(in, []byte("\r\n"), nil), []byte("\n"))
	},
	"malformed header name":                 func(in []byte, _ *http.Request) bool { return true }, // continued lines, names that are no tokens
	"malformed header value":                func(in []byte, _ *http.Request) bool { return true }, // net/http's server, not its parser, checks it
	"malformed Host":                        func([]byte, *http.Request) bool { return true },
	"no Host":                               func([]byte, *http.Request) bool { return true },
	"only HTTP/1.1 and HTTP/1.0 are served": func(_ []byte, r *http.Request) bool { return r.Proto != "HTTP/1.1" && r.Proto != "HTTP/1.0" },
	"* is the target of no request here":    func(_ []byte, r *http.Request) bool { return r.RequestURI == "*" },
	"more than one Content-Length": func(in []byte, _ *http.Request) bool {
		return bytes.Count(bytes.ToLower(in), []byte("content-length")) > 1
	},
	"both Content-Length and Transfer-Encoding": func(in []byte, _ *http.Request) bool {
		return bytes.Contains(bytes.ToLower(in), []byte("content-length")) && bytes.Contains(bytes.ToLower(in), []byte("transfer-encoding"))
	},
	"Transfer-Encoding in HTTP/1.0": func(_ []byte, r *http.Request) bool { return r.Proto == "HTTP/1.0" },
	"the expectation is not known":  func(_ []byte, r *http.Request) bool { return len(r.Header["Expect"]) > 0 },
	"the head is too long":          func(in []byte, _ *http.Request) bool { return len(in) > maxHead },
	"malformed request line":        func(_ []byte, r *http.Request) bool { return r.Method == "" },
}

var heads = []string{
	"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /b/k?x-id=GetObject&a HTTP/1.1\r\nHost: 127.0.0.1:80\r\nX-Amz-Date: 2\r\nx-amz-date: 3\r\nX-a:\t b \r\n\r\nGET ",
	"PUT /b/k%20k HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbodyGET / HTTP/1.1\r\n\r\n",
	"PUT /b/k? HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nshort",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: x-a\r\n\r\n4\r\nbody\r\n0\r\nx-a: b\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: content-length\r\n\r\n0\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"PUT /b/k HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chun\u212aed\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length: 0x4\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length: 1_0\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nContent-Length :4\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nX: a\r\n Content-Length: 4\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nX: a\rContent-Length: 4\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nX: a\nContent-Length: 4\r\n\r\nbody",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nX: \xff\xe9\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\n Host: a\r\n\r\n",
	"PUT /b/k HTTP/1.1\nHost: a\n\n",
	"PUT /b/k HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\nHost: a b\r\n\r\n",
	"PUT /b/k HTTP/1.1\r\n\r\n",
	"GET /b/k HTTP/1.0\r\n\r\n",
	"GET http://other/b/k?q HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET //other/b HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET b HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /a#b?c#d HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /\tHTTP/1.1\r\nHost: a\r\n\r\n",
	"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
	"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
	"CONNECT /a HTTP/1.1\r\n\r\n",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
	"GET / HTTP/x.y\r\nHost: a\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\nx",
	"GET / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n",
	"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
	"G\x00T / HTTP/1.1\r\nHost: a\r\n\r\n",
}

// FuzzHead compares the parser with net/http's: it takes nothing that net/http refuses, reads the same fields, body and
// rest from what it takes, and refuses of what net/http takes only what is listed.
func FuzzHead(f *testing.F) {
	for _, h := range heads {
		f.Add([]byte(h))
	}
	f.Fuzz(func(t *testing.T, in []byte) { compare(t, in) })
}

func compare(t *testing.T, in []byte) {
	theirs := bufio.NewReader(bytes.NewReader(in))
	want, werr := http.ReadRequest(theirs)
	got, body, rest, err := parsed(in)
	if err != nil {
		if werr != nil {
			return
		}
		var r *refusal
		if !errors.As(err, &r) {
			t.Fatalf("%v, where net/http reads a request: %q", err, in)
		}
		if allowed := stricter[r.reason]; allowed == nil || !allowed(in, want) {
			t.Fatalf("refused as %q: %q", r.reason, in)
		}
		return
	}
	if werr != nil {
		t.Fatalf("net/http refuses %q: %v", in, werr)
	}
	if got.Header.Get("Pragma") != "" { // from which net/http makes a Cache-Control that nobody has sent
		delete(want.Header, "Cache-Control")
		delete(got.Header, "Cache-Control")
	}
	if got.Method != want.Method || got.RequestURI != want.RequestURI || got.Proto != want.Proto || got.ProtoMinor != want.ProtoMinor || got.Host != want.Host ||
		got.ContentLength != want.ContentLength || !slices.Equal(got.TransferEncoding, want.TransferEncoding) || !reflect.DeepEqual(got.URL, want.URL) ||
		!maps.EqualFunc(got.Header, want.Header, slices.Equal[[]string]) {
		t.Fatalf("%q:\nread %+v %+v\nwant %+v %+v", in, got, got.URL, want, want.URL)
	}
	wantBody, berr := io.ReadAll(want.Body)
	if berr != nil && body != nil {
		t.Fatalf("%q: body %q, net/http's error %v", in, body, berr)
	}
	if body == nil { // of what net/http takes, trailers with lines that end with LF are refused
		if berr == nil && len(want.TransferEncoding) == 0 {
			t.Fatalf("%q: no body, where net/http reads %q", in, wantBody)
		}
		return
	}
	if !bytes.Equal(body, wantBody) {
		t.Fatalf("%q: body %q, want %q", in, body, wantBody)
	}
	if wantRest, _ := io.ReadAll(theirs); len(want.TransferEncoding) == 0 && !bytes.Equal(rest, wantRest) {
		t.Fatalf("%q: rest %q, want %q", in, rest, wantRest)
	}
}

// TestSmuggledRequestsAreRefused: what two readers could take for different requests is an error.
func TestSmuggledRequestsAreRefused(t *testing.T) {
	for _, c := range []struct {
		fields string
		status int
	}{
		{"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", 400},
		{"Content-Length: 4\r\nContent-Length: 4\r\n", 400},
		{"Content-Length: 4\r\nContent-Length: 5\r\n", 400},
		{"Content-Length: 4,4\r\n", 400},
		{"Content-Length: +4\r\n", 400},
		{"Content-Length: -4\r\n", 400},
		{"Content-Length:\r\n", 400},
		{"Content-Length : 4\r\n", 400},
		{"Content-Length\r\n", 400},
		{"X: a\r\n Content-Length: 4\r\n", 400},
		{"X: a\nContent-Length: 4\r\n", 400},
		{"X: a\rContent-Length: 4\r\n", 400},
		{"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 501},
		{"Transfer-Encoding: gzip, chunked\r\n", 501},
		{"Transfer-Encoding: \vchunked\r\n", 400},
		{"Transfer-Encoding: chun\u212aed\r\n", 501}, // the Kelvin sign, a K by Unicode's folding of case
		{"Transfer-Encoding: chunked\r\nTrailer: a, Content-Length\r\n", 400},
		{"Host: b\r\n", 400},
		{"Expect: something\r\n", 417},
		{"X: " + strings.Repeat("a", maxHead) + "\r\n", 431},
	} {
		_, _, _, err := parsed([]byte("PUT /b/k HTTP/1.1\r\nHost: a\r\n" + c.fields + "\r\nbody"))
		var r *refusal
		if !errors.As(err, &r) || r.status != c.status {
			t.Errorf("%.60q: %v, want %d", c.fields, err, c.status)
		}
	}
}

// TestFieldsOfManyRequests: the memory that requests share shows nothing of an earlier one.
func TestFieldsOfManyRequests(t *testing.T) {
	c := newConn(context.Background(), &Server{timeouts: defaults}, text{in: strings.NewReader(
		"PUT /a%20b?q HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nX-A: 2\r\nX-B: 3\r\nContent-Length: 2\r\n\r\nokGET /c HTTP/1.1\r\nHost: b\r\nX-C: 4\r\n\r\n")})
	var seen []string
	for range 2 {
		head, err := c.readHead(false)
		if err == nil {
			err = c.parse(head)
		}
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(c.request.Body)
		var fields []string
		for _, n := range slices.Sorted(maps.Keys(c.request.Header)) {
			fields = append(fields, n+"="+strings.Join(c.request.Header[n], "+"))
		}
		seen = append(seen, strings.Join([]string{c.request.Method, c.request.URL.String(), c.request.Host, strings.Join(fields, " "), string(body)}, "|"))
		c.reuse()
		c.state.Store(idle)
	}
	if want := []string{"PUT|/a%20b?q|a|Content-Length=2 X-A=1+2 X-B=3|ok", "GET|/c|b|X-C=4|"}; !slices.Equal(seen, want) {
		t.Errorf("got %q, want %q", seen, want)
	}
}

// TestMemoryOfManyFields: a connection gives back what only a request with very many fields needs, also where all have
// one name.
func TestMemoryOfManyFields(t *testing.T) {
	c := newConn(context.Background(), &Server{timeouts: defaults}, text{in: strings.NewReader(
		"GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("A:\r\n", 10_000) + "\r\n")})
	head, err := c.readHead(false)
	if err == nil {
		err = c.parse(head)
	}
	if err != nil || len(c.request.Header["A"]) != 10_000 {
		t.Fatalf("%d fields, %v", len(c.request.Header["A"]), err)
	}
	c.reuse()
	if n := cap(c.values); n > 2*keepFields {
		t.Errorf("the connection keeps room for %d values", n)
	}
}
