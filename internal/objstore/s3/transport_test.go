package s3

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// script is a server that serves each connection with fn, which gets the connection's number from
// 1 on, a function that reads the next request with its body, and the connection.
type script struct {
	t     testing.TB
	l     net.Listener
	conns atomic.Int64
	mu    sync.Mutex
	seen  []string // method, path and length of the body of every request
}

func serveScript(t testing.TB, fn func(n int64, next func() *http.Request, c net.Conn)) *script {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &script{t: t, l: l}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n := s.conns.Add(1)
			go func() {
				defer c.Close()
				in := bufio.NewReader(c)
				fn(n, func() *http.Request {
					r, err := http.ReadRequest(in)
					if err != nil {
						return nil
					}
					b, err := io.ReadAll(r.Body)
					if err != nil {
						return nil
					}
					r.Body = io.NopCloser(bytes.NewReader(b))
					s.mu.Lock()
					s.seen = append(s.seen, fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, len(b)))
					s.mu.Unlock()
					return r
				}, c)
			}()
		}
	}()
	return s
}

func (s *script) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

func (s *script) store(change ...func(*Config)) *Store {
	s.t.Helper()
	cfg := testConfig("http://" + s.l.Addr().String())
	for _, f := range change {
		f(&cfg)
	}
	st, err := New(s.t.Context(), cfg, Options{})
	must(s.t, err)
	s.t.Cleanup(st.Close)
	if _, ok := st.rt.(*direct); !ok {
		s.t.Fatalf("requests are sent by %T", st.rt)
	}
	return st
}

const created = "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n"

func body(n int) []byte { return bytes.Repeat([]byte("x"), n) }

func create(s objstore.Store, key string, n int) error {
	_, err := s.Create(context.Background(), key, body(n), objstore.PutOptions{})
	return err
}

// Requests and answers of every kind use one connection, one after the other.
func TestOneConnectionServesRequestsOfEveryKind(t *testing.T) {
	s := serveScript(t, func(_ int64, next func() *http.Request, c net.Conn) {
		for {
			r := next()
			if r == nil {
				return
			}
			switch {
			case r.Method == "HEAD":
				io.WriteString(c, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 7\r\n\r\n")
			case r.Method == "DELETE":
				io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			case r.Method == "PUT":
				// Interim answers come before the one that counts.
				io.WriteString(c, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"+created)
			case strings.HasSuffix(r.URL.Path, "/absent"):
				io.WriteString(c, "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n1b\r\n<Error><Code>NoSuchKey</Cod\r\nb\r\ne></Error> \r\n0\r\nX-T: 1\r\n\r\n")
			case r.URL.RawQuery != "":
				io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n41\r\n<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketRes\r\n5\r\nult>\n\r\n0\r\n\r\n")
			default:
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: %d\r\n\r\n%s", 100<<10, body(100<<10))
			}
		}
	})
	st := s.store()
	for range 3 {
		for _, n := range []int{0, 1, sendAtOnce, sendAtOnce + 1, expectFrom, 1 << 20} {
			must(t, create(st, "k", n))
		}
		b, _, err := st.Get(t.Context(), "k", objstore.GetOptions{})
		if err != nil || !bytes.Equal(b, body(100<<10)) {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		if _, _, err := st.Get(t.Context(), "absent", objstore.GetOptions{}); !errors.Is(err, objstore.ErrNotFound) {
			t.Fatal(err)
		}
		if info, err := st.Head(t.Context(), "k"); err != nil || info.Size != 7 {
			t.Fatalf("%+v, %v", info, err)
		}
		must(t, st.Delete(t.Context(), "k"))
		_, err = st.List(t.Context(), objstore.ListOptions{})
		must(t, err)
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// What a server sends unasked, and a connection that it has closed, are found before a request is
// sent: the request goes over another connection, and its answer is its own.
func TestIdleConnectionsAreChecked(t *testing.T) {
	for name, unasked := range map[string]string{
		"closed":            "",
		"an answer":         "HTTP/1.1 200 OK\r\nETag: \"foreign\"\r\nContent-Length: 0\r\n\r\n",
		"a timeout":         "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n",
		"half an answer":    "HTTP/1.1 2",
		"an interim answer": "HTTP/1.1 100 Continue\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			sent := make(chan struct{})
			s := serveScript(t, func(n int64, next func() *http.Request, c net.Conn) {
				next()
				io.WriteString(c, created)
				if n == 1 {
					time.Sleep(20 * time.Millisecond) // until the connection is idle
					io.WriteString(c, unasked)
					if unasked == "" {
						c.Close()
					}
					close(sent)
				}
				next()
			})
			st := s.store()
			must(t, create(st, "a", 10))
			<-sent
			time.Sleep(20 * time.Millisecond)
			info, err := st.Create(t.Context(), "b", body(10), objstore.PutOptions{})
			if err != nil || info.ETag != `"e"` {
				t.Fatalf("%+v, %v", info, err)
			}
			if got := strings.Join(s.requests(), ", "); got != "PUT /bucket/a 10, PUT /bucket/b 10" {
				t.Error(got)
			}
		})
	}
}

// Bytes behind an answer make its connection useless, in the same segment as the answer or beyond
// what the client buffers.
func TestBytesBehindAnAnswerAreNoAnswer(t *testing.T) {
	for _, size := range []int{0, 10, 64 << 10} {
		s := serveScript(t, func(n int64, next func() *http.Request, c net.Conn) {
			for next() != nil {
				if n > 1 {
					io.WriteString(c, created)
					continue
				}
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: %d\r\n\r\n%sHTTP/1.1 200 OK\r\nETag: \"foreign\"\r\nContent-Length: 0\r\n\r\n", size, body(size))
			}
		})
		st := s.store()
		if b, _, err := st.Get(t.Context(), "k", objstore.GetOptions{}); err != nil || len(b) != size {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		info, err := st.Create(t.Context(), "b", body(10), objstore.PutOptions{})
		if err != nil || info.ETag != `"e"` || s.conns.Load() != 2 {
			t.Errorf("%d bytes: %+v, %v, %d connections", size, info, err, s.conns.Load())
		}
	}
}

// The same over TLS, where the bytes are a record of their own, which the client has read from the socket with that of the
// answer.
func TestRecordsBehindAnAnswerAreNoAnswer(t *testing.T) {
	var wire bytes.Buffer // what the server sends in one write
	certificate := otherCertificate(t)
	s := serveScript(t, func(n int64, _ func() *http.Request, raw net.Conn) {
		c := tls.Server(&heldConn{Conn: raw, held: &wire}, &tls.Config{Certificates: []tls.Certificate{certificate}})
		if c.Handshake() != nil {
			return
		}
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			if n > 1 {
				io.WriteString(c, created)
				continue
			}
			held := c.NetConn().(*heldConn)
			held.hold = true
			io.WriteString(c, created)
			io.WriteString(c, "HTTP/1.1 200 OK\r\nETag: \"foreign\"\r\nContent-Length: 0\r\n\r\n")
			held.hold = false
			_, _ = wire.WriteTo(raw)
		}
	})
	file := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}), 0o600))
	st := s.store(func(c *Config) { c.Endpoint, c.CAFile = "https://"+s.l.Addr().String(), file })
	must(t, create(st, "a", 10))
	for range 3 {
		info, err := st.Create(t.Context(), "b", body(10), objstore.PutOptions{})
		if err != nil || info.ETag != `"e"` || s.conns.Load() != 2 {
			t.Errorf("%+v, %v, %d connections", info, err, s.conns.Load())
		}
	}
}

// heldConn keeps what is written while hold is set.
type heldConn struct {
	net.Conn
	hold bool
	held *bytes.Buffer
}

func (c *heldConn) Write(b []byte) (int, error) {
	if c.hold {
		return c.held.Write(b)
	}
	return c.Conn.Write(b)
}

// A write that got no answer is sent once and its outcome is unknown, also on a connection that was
// used before. A read is sent again there, once.
func TestWithoutAnAnswerAWriteIsNotRepeated(t *testing.T) {
	silent := func(n int64, next func() *http.Request, c net.Conn) {
		next()
		io.WriteString(c, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n")
		if n == 1 {
			next() // read, and never answered
		} else {
			next()
		}
	}
	for name, op := range ops {
		t.Run(name, func(t *testing.T) {
			s := serveScript(t, silent)
			st := s.store()
			must(t, create(st, "first", 1))
			err := op(t.Context(), st)
			reads := name == "get" || name == "head" || name == "list"
			want := 2
			if reads {
				want = 3
			} else if !errors.Is(err, objstore.ErrUnknown) {
				t.Errorf("%v", err)
			}
			if reads && name != "list" && err != nil {
				t.Error(err)
			}
			if got := s.requests(); len(got) != want {
				t.Errorf("%d requests: %q", len(got), got)
			}
		})
	}
	t.Run("a read on a new connection", func(t *testing.T) {
		s := serveScript(t, func(_ int64, next func() *http.Request, _ net.Conn) { next() })
		_, _, err := s.store().Get(t.Context(), "k", objstore.GetOptions{})
		if !errors.Is(err, objstore.ErrUnavailable) || len(s.requests()) != 1 {
			t.Errorf("%v, %q", err, s.requests())
		}
	})
}

// A server may refuse a write before it has read the body: the refusal is the answer, whether the
// server closes the connection or reads no more of it, and the connection is not used again.
func TestRefusalBeforeTheBodyIsRead(t *testing.T) {
	const refused = "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
	for _, size := range []int{1 << 10, sendAtOnce, sendAtOnce + 1, expectFrom - 1, expectFrom, 32 << 20} {
		for _, closes := range []bool{true, false} {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			var conns atomic.Int64
			done, closed := make(chan struct{}), make(chan struct{}, 2)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					conns.Add(1)
					go func() {
						defer func() { closed <- struct{}{} }()
						defer c.Close()
						if _, err := http.ReadRequest(bufio.NewReaderSize(c, 16)); err != nil {
							return
						}
						io.WriteString(c, refused)
						if !closes {
							<-done
						}
					}()
				}
			}()
			cfg := testConfig("http://" + l.Addr().String())
			st, err := New(t.Context(), cfg, Options{})
			must(t, err)
			for i := range 2 {
				if err := create(impatientFor(st, 10*time.Second), "k", size); !errors.Is(err, objstore.ErrExists) && (!closes || !errors.Is(err, objstore.ErrUnknown)) {
					t.Errorf("%d bytes, closes %v, request %d: %v", size, closes, i, err)
				}
				if !closes && size < expectFrom {
					break // the body lies in the server's buffer, where this server leaves it
				}
				if closes {
					<-closed // a request before that may still find the connection open
				}
			}
			if (closes || size >= expectFrom) && conns.Load() != 2 {
				t.Errorf("%d bytes, closes %v: %d connections", size, closes, conns.Load())
			}
			st.Close()
			close(done)
			l.Close()
		}
	}
}

func impatientFor(s objstore.Store, d time.Duration) objstore.Store { return objstore.Deadline(s, d) }

// A context that ends cuts a request at every moment, with the context's error, and what arrives
// afterwards is nobody's answer.
func TestCancelledRequestsLeaveNothingBehind(t *testing.T) {
	for _, when := range []string{"before the answer", "in the head", "in the body"} {
		t.Run(when, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := serveScript(t, func(n int64, next func() *http.Request, c net.Conn) {
				for next() != nil {
					if n > 1 {
						io.WriteString(c, created)
						continue
					}
					switch when {
					case "in the head":
						io.WriteString(c, "HTTP/1.1 200 OK\r\nETag:")
					case "in the body":
						io.WriteString(c, "HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 100\r\n\r\nabc")
					}
					time.Sleep(20 * time.Millisecond)
					cancel()
					time.Sleep(20 * time.Millisecond)
					io.WriteString(c, created)
				}
			})
			st := s.store()
			if _, _, err := st.Get(ctx, "k", objstore.GetOptions{}); !errors.Is(err, context.Canceled) || !errors.Is(err, objstore.ErrUnavailable) {
				t.Errorf("%v", err)
			}
			time.Sleep(50 * time.Millisecond)
			must(t, create(st, "b", 10))
			if s.conns.Load() != 2 {
				t.Errorf("%d connections", s.conns.Load())
			}
		})
	}
}

// No more connections than the setting says, and who waits for one waits no longer than its context.
func TestConnectionsAreBounded(t *testing.T) {
	var running, most atomic.Int64
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		io.Copy(io.Discard, r.Body)
		time.Sleep(time.Millisecond)
		w.Header().Set("ETag", `"e"`)
	})
	var open atomic.Int64
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			open.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	cfg := testConfig(srv.URL)
	cfg.MaxConnections = 3
	st, err := New(t.Context(), cfg, Options{})
	must(t, err)
	defer st.Close()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 10 {
				if err := create(st, "k", 100); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > 3 || open.Load() > 3 {
		t.Errorf("%d requests at the same time, %d connections", most.Load(), open.Load())
	}

	busy := serveScript(t, func(_ int64, next func() *http.Request, _ net.Conn) { next(); next() })
	one := busy.store(func(c *Config) { c.MaxConnections = 1 })
	first, end := context.WithCancel(t.Context())
	wg.Go(func() { _, _, _ = one.Get(first, "k", objstore.GetOptions{}) })
	for len(busy.requests()) == 0 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := one.Create(ctx, "k", nil, objstore.PutOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	end()
	wg.Wait()
	if n := len(busy.requests()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// A connection whose last request had a deadline is used again after that time, too.
func TestDeadlinesOfEarlierRequestsCostNoConnection(t *testing.T) {
	srv := serveScript(t, func(_ int64, next func() *http.Request, c net.Conn) {
		for next() != nil {
			io.WriteString(c, created)
		}
	})
	one := srv.store()
	pool := one.plain.direct
	for range 3 {
		must(t, create(objstore.Deadline(one, time.Minute), "k", 10))
		c := pool.pop(place{"http", srv.l.Addr().String()})
		if c == nil || c.ends.IsZero() {
			t.Fatalf("no idle connection with the deadline of its request: %+v", c)
		}
		c.setDeadline(time.Now().Add(-time.Second)) // as if it had been idle for a minute
		pool.keep(c)
	}
	if n := srv.conns.Load(); n != 1 {
		t.Errorf("%d connections for requests one after the other", n)
	}
}

// Every request gets the answer to itself, whatever others do: refused early, cut off, cancelled.
func TestAnswersAreNeverMixedUp(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"`+strings.TrimPrefix(r.URL.Path, "/bucket/")+`"`)
		if r.Method == http.MethodGet {
			io.WriteString(w, r.URL.Path) // GET a key: its path
			return
		}
		switch r.Header.Get("Content-Type") {
		case "early":
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		case "cut":
			panic(http.ErrAbortHandler)
		case "slow":
			time.Sleep(3 * time.Millisecond)
		}
		io.Copy(io.Discard, r.Body)
	}))
	srv.Config.ErrorLog = nil
	defer srv.Close()
	st, err := New(t.Context(), testConfig(srv.URL), Options{})
	must(t, err)
	defer st.Close()
	var wg sync.WaitGroup
	var good atomic.Int64
	for worker := range 16 {
		wg.Go(func() {
			for i := range 120 {
				key := fmt.Sprintf("w%d-%d", worker, i)
				ctx, cancel := context.WithCancel(t.Context())
				if (i+worker)%11 == 0 {
					time.AfterFunc(time.Duration(i)*20*time.Microsecond, cancel)
				}
				kind := []string{"", "early", "", "cut", "slow"}[(i+worker)%5]
				size := []int{0, 700, 40 << 10, 300 << 10}[(i/5)%4]
				if i%3 == 0 {
					b, info, err := st.Get(ctx, key, objstore.GetOptions{})
					if err == nil && (string(b) != "/bucket/"+key || info.ETag != `"`+key+`"`) {
						t.Errorf("GET %s: %q, %+v", key, b, info)
					}
				} else {
					info, err := st.Create(ctx, key, body(size), objstore.PutOptions{ContentType: kind})
					switch {
					case err == nil && (info.ETag != `"`+key+`"` || kind == "early" || kind == "cut"):
						t.Errorf("PUT %s %q: %+v", key, kind, info)
					case errors.Is(err, objstore.ErrExists) && kind != "early", err != nil && !errors.Is(err, objstore.ErrExists) && !errors.Is(err, objstore.ErrUnknown):
						t.Errorf("PUT %s %q: %v", key, kind, err)
					case err == nil:
						good.Add(1)
					}
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if good.Load() < 100 {
		t.Errorf("only %d writes succeeded", good.Load())
	}
}

// What can't be sent as it is asked for is refused, and nothing is sent.
func TestRequestsThatWouldBeOthersAreRefused(t *testing.T) {
	s := serveScript(t, func(_ int64, next func() *http.Request, c net.Conn) {
		for next() != nil {
			io.WriteString(c, created)
		}
	})
	st := s.store()
	for _, o := range []objstore.PutOptions{{ContentType: "a\r\nX-Evil: b"}, {ContentType: "a\nb"}, {ContentType: "\x00"}} {
		if _, err := st.Create(t.Context(), "k", body(3), o); err == nil {
			t.Errorf("%q is sent", o.ContentType)
		}
	}
	if _, err := st.Replace(t.Context(), "k", nil, "\"e\"\r\n\r\nDELETE / HTTP/1.1\r\n\r\n", objstore.PutOptions{}); err == nil {
		t.Error("a condition of two lines is sent")
	}
	if got := s.requests(); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// The header of an answer is bounded.
func TestEndlessHeader(t *testing.T) {
	s := serveScript(t, func(_ int64, next func() *http.Request, c net.Conn) {
		next()
		io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for {
			if _, err := io.WriteString(c, "X-Header: "+strings.Repeat("y", 1000)+"\r\n"); err != nil {
				return
			}
		}
	})
	if err := create(s.store(), "k", 10); !errors.Is(err, objstore.ErrUnknown) || !errors.Is(err, errBigHeader) {
		t.Error(err)
	}
}

// Idle connections are closed after a while, and by Close.
func TestIdleConnectionsAreClosed(t *testing.T) {
	ended := make(chan struct{}, 10)
	s := serveScript(t, func(_ int64, next func() *http.Request, c net.Conn) {
		for next() != nil {
			io.WriteString(c, created)
		}
		ended <- struct{}{}
	})
	st := s.store()
	must(t, create(st, "k", 10))
	d := st.rt.(*direct)
	d.mu.Lock()
	for _, list := range d.idle {
		for _, c := range list {
			c.since = c.since.Add(-idleTimeout)
		}
	}
	if d.sweep == nil {
		t.Error("nothing will close the idle connection")
	}
	d.mu.Unlock()
	d.closeOld()
	<-ended
	must(t, create(st, "k", 10))
	st.Close()
	<-ended
	must(t, create(st, "k", 10))
	if n := s.conns.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
}

// A proxy, and a host name that needs translation, are left to Go's transport.
func TestProxiesAreLeftToGo(t *testing.T) {
	for _, endpoint := range []string{"http://bücher.example", "http://[fe80::1%25eth0]:9000"} {
		st, err := New(t.Context(), testConfig(endpoint), Options{})
		if err != nil {
			continue // the endpoint rules refuse it
		}
		if _, ok := st.rt.(*http.Transport); !ok {
			t.Errorf("%s: %T", endpoint, st.rt)
		}
	}
}
