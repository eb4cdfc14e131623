package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const patience = 20 * time.Second

// serve runs a server; end stops it and waits for it.
func serve(t *testing.T, h http.HandlerFunc, bounds timeouts, drain time.Duration) (addr string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &Server{Handler: h, Log: slog.New(slog.DiscardHandler), timeouts: bounds}
	go func() { done <- s.Serve(ctx, l, drain) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(end)
	return l.Addr().String(), end
}

// client is a connection that sends bytes and reads answers.
type client struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &client{t, c, bufio.NewReader(c)}
}

func (c *client) send(s string) {
	c.t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads an answer with its body.
func (c *client) answer(method string) (*http.Response, string) {
	c.t.Helper()
	r, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal(err)
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return r, string(b)
}

// closed fails unless the server has closed the connection and sent nothing more.
func (c *client) closed() {
	c.t.Helper()
	if b, err := io.ReadAll(c.in); err != nil && errors.Is(err, os.ErrDeadlineExceeded) || len(b) > 0 {
		c.t.Errorf("the connection is open or has more: %q, %v", b, err)
	}
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.Header().Set("X-Path", r.URL.Path)
	_, _ = w.Write(b)
}

// Requests that are sent at once, some with bodies, are answered in their order, on one connection.
func TestPipelining(t *testing.T) {
	addr, _ := serve(t, echo, defaults, patience)
	c := dial(t, addr)
	c.send("GET /a HTTP/1.1\r\nHost: a\r\n\r\nPUT /b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nbodPUT /c HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nxyHEAD /d HTTP/1.1\r\nHost: a\r\n\r\nGET /e HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /f HTTP/1.1\r\nHost: a\r\n\r\n")
	for _, want := range []struct{ method, path, body string }{{"GET", "/a", ""}, {"PUT", "/b", "bod"}, {"PUT", "/c", "xy"}, {"HEAD", "/d", ""}, {"GET", "/e", ""}} {
		r, body := c.answer(want.method)
		if r.Header.Get("X-Path") != want.path || body != want.body || r.Close != (want.path == "/e") || r.Header.Get("Date") == "" {
			t.Errorf("got %v %q, want %v", r, body, want)
		}
	}
	c.closed()
}

// Any bodies, with a length or in chunks, come back as they were, over net/http's client.
func TestBodiesOfAnySize(t *testing.T) {
	addr, _ := serve(t, echo, defaults, patience)
	hc := &http.Client{Transport: &http.Transport{}}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		body := make([]byte, rng.IntN(1<<(4+i%15)))
		for j := range body {
			body[j] = byte(rng.Uint32())
		}
		var from io.Reader = bytes.NewReader(body)
		if i%2 == 1 {
			from = io.MultiReader(from) // hides the length
		}
		resp, err := hc.Post("http://"+addr+"/x", "", from)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || !bytes.Equal(got, body) || resp.StatusCode != 200 {
			t.Fatalf("%d bytes: %d %v, %d bytes", len(body), resp.StatusCode, err, len(got))
		}
	}
}

// An answer that comes before the body was read: a small rest is read, and the connection kept. Of a large one the
// client gets the answer, and then the end.
func TestAnswersBeforeTheBody(t *testing.T) {
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, "no")
	}, defaults, patience)
	c := dial(t, addr)
	c.send("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000))
	if r, body := c.answer("PUT"); r.StatusCode != 403 || body != "no" || r.Close {
		t.Errorf("%v %q", r, body)
	}
	c.send("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 300000))
	if r, body := c.answer("PUT"); r.StatusCode != 403 || body != "no" || !r.Close {
		t.Errorf("%v %q", r, body)
	}
	c.closed()
	chunked := dial(t, addr)
	chunked.send("PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nGE\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if r, _ := chunked.answer("PUT"); r.StatusCode != 403 || !r.Close {
		t.Errorf("%v", r)
	}
	chunked.closed()
}

// What is left of a body when the answer goes out was dropped: to a handler that reads on, its end must not be that of
// the body.
func TestBodiesEndWithTheAnswer(t *testing.T) {
	errs := make(chan error, 1)
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(make([]byte, 2*smallWrite))
		_, err := io.ReadAll(r.Body)
		errs <- err
	}, defaults, patience)
	c := dial(t, addr)
	c.send("PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody")
	if r, _ := c.answer("PUT"); r.StatusCode != 200 || r.Close {
		t.Errorf("%v", r)
	}
	if err := <-errs; !errors.Is(err, http.ErrBodyReadAfterClose) {
		t.Errorf("the rest of the body: %v", err)
	}
}

// 100 Continue is sent when the body is read. A refusal without it ends the connection, as the body may come or not.
func TestExpectation(t *testing.T) {
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/read" {
			echo(w, r)
		}
		if r.ContentLength == 0 {
			w.WriteHeader(http.StatusContinue)
		}
	}, defaults, patience)
	const head = " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: "
	c := dial(t, addr)
	c.send("PUT /read" + head + "2\r\n\r\n")
	if r, _ := c.answer("PUT"); r.StatusCode != 100 {
		t.Fatalf("%v", r)
	}
	c.send("ok")
	if r, body := c.answer("PUT"); r.StatusCode != 200 || body != "ok" || r.Close {
		t.Errorf("%v %q", r, body)
	}
	c.send("PUT /empty" + head + "0\r\n\r\n")
	if r, _ := c.answer("PUT"); r.StatusCode != 100 {
		t.Fatalf("%v", r)
	}
	if r, _ := c.answer("PUT"); r.StatusCode != 200 || r.Close {
		t.Errorf("%v", r)
	}
	c.send("PUT /refused" + head + "2\r\n\r\n")
	if r, _ := c.answer("PUT"); r.StatusCode != 200 || !r.Close {
		t.Errorf("%v", r)
	}
	c.closed()
}

// The framing of answers of every kind.
func TestFraming(t *testing.T) {
	long := strings.Repeat("0123456789", 20_000)
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Line", "a\r\nX-Forged: b")
		h["Bad Name"] = []string{"x"}
		switch r.URL.Path {
		case "/declared":
			h.Set("Content-Length", strconv.Itoa(len(long)))
			for i := 0; i < len(long); i += 50_000 {
				_, _ = io.WriteString(w, long[i:i+50_000])
			}
			if _, err := w.Write([]byte("more")); !errors.Is(err, http.ErrContentLength) {
				t.Errorf("more than was declared: %v", err)
			}
		case "/long":
			for i := 0; i < len(long); i += 1000 {
				_, _ = io.WriteString(w, long[i:i+1000])
			}
		case "/none":
			w.WriteHeader(http.StatusNoContent)
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrBodyNotAllowed) {
				t.Errorf("a body of 204: %v", err)
			}
		case "/same":
			h.Set("Content-Length", "5")
			w.WriteHeader(http.StatusNotModified)
		case "/short":
			h.Set("Content-Length", "5")
			_, _ = w.Write([]byte("x"))
		case "/fields":
			h["Content-Length"], h["Date"] = []string{}, nil
			_, _ = w.Write([]byte("x"))
		case "/abort":
			h.Set("Content-Length", "5")
			_, _ = w.Write([]byte("x"))
			panic(http.ErrAbortHandler)
		}
	}, defaults, patience)
	c := dial(t, addr)
	for _, k := range []struct {
		method, path, version string
		status                int
		length                int64
		body                  string
	}{
		{"GET", "/declared", "1.1", 200, int64(len(long)), long},
		{"HEAD", "/declared", "1.1", 200, int64(len(long)), ""},
		{"GET", "/long", "1.1", 200, -1, long},
		{"HEAD", "/long", "1.1", 200, int64(len(long)), ""},
		{"GET", "/none", "1.1", 204, 0, ""},
		{"GET", "/same", "1.1", 304, 0, ""},
		{"GET", "/empty", "1.1", 200, 0, ""},
		{"GET", "/fields", "1.1", 200, 1, "x"},
		{"GET", "/long", "1.0", 200, -1, long},
	} {
		c.send(k.method + " " + k.path + " HTTP/" + k.version + "\r\nHost: a\r\n\r\n")
		r, body := c.answer(k.method)
		if r.StatusCode != k.status || r.ContentLength != k.length || body != k.body || r.Close != (k.version == "1.0") {
			t.Errorf("%s %s: %d, length %d, close %v, body %.20q", k.method, k.path, r.StatusCode, r.ContentLength, r.Close, body)
		}
		if r.Header.Get("X-Forged") != "" || r.Header.Get("X-Line") != "a  X-Forged: b" || len(r.Header["Bad Name"]) > 0 {
			t.Errorf("header %v", r.Header)
		}
	}
	c.closed()
	for _, path := range []string{"/short", "/abort"} {
		c := dial(t, addr)
		c.send("GET " + path + " HTTP/1.1\r\nHost: a\r\n\r\n")
		r, err := http.ReadResponse(c.in, nil)
		if err == nil {
			_, err = io.ReadAll(r.Body)
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v, want an answer that ends early", path, err)
		}
	}
}

// Clients that send nothing, or a byte now and then, or read nothing, lose their connection.
func TestSlowClientsLoseTheirConnection(t *testing.T) {
	gaveUp := make(chan struct{})
	short := timeouts{head: 50 * time.Millisecond, idle: 50 * time.Millisecond, write: 50 * time.Millisecond, unread: 50 * time.Millisecond, linger: 10 * time.Millisecond}
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			w.Header().Set("Content-Length", strconv.Itoa(1<<30))
			for range 1 << 10 {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					close(gaveUp)
					return
				}
			}
			t.Error("1 GiB was written to a client that reads nothing")
		}
	}, short, patience)
	dial(t, addr).closed()
	dribble := dial(t, addr)
	dribble.send("GET / HT")
	go func() {
		for {
			time.Sleep(5 * time.Millisecond)
			if _, err := io.WriteString(dribble.Conn, "T"); err != nil {
				return
			}
		}
	}()
	_, _ = io.Copy(io.Discard, dribble) // ends
	body := dial(t, addr)
	body.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx")
	if r, _ := body.answer("PUT"); !r.Close {
		t.Errorf("%v", r)
	}
	body.closed()
	idle := dial(t, addr)
	idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	idle.answer("GET")
	idle.closed()
	deaf := dial(t, addr)
	deaf.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
	<-gaveUp
}

// At the end idle connections are closed, requests are finished, and those that do not end are cut off.
func TestShutdown(t *testing.T) {
	for _, ends := range []bool{true, false} {
		t.Run(fmt.Sprint("request ends ", ends), func(t *testing.T) {
			began, goOn := make(chan struct{}), make(chan struct{})
			drain := patience
			if !ends {
				drain = 10 * time.Millisecond
			}
			addr, end := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/wait" {
					return
				}
				close(began)
				select {
				case <-goOn:
				case <-r.Context().Done():
				}
				_, _ = w.Write([]byte("done"))
			}, defaults, drain)
			idle, busy := dial(t, addr), dial(t, addr)
			idle.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			idle.answer("GET")
			busy.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
			<-began
			ended := make(chan struct{})
			go func() { end(); close(ended) }()
			idle.closed()
			if _, err := net.Dial("tcp", addr); err == nil {
				t.Error("a connection is still accepted")
			}
			if ends {
				close(goOn)
				if r, body := busy.answer("GET"); body != "done" || !r.Close {
					t.Errorf("%v %q", r, body)
				}
			}
			busy.closed()
			<-ended
		})
	}
}

// A deadline of the handler's own is kept, and ends with its request.
func TestDeadlinesOfHandlers(t *testing.T) {
	addr, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if err := errors.Join(rc.SetReadDeadline(time.Now()), rc.SetWriteDeadline(time.Now().Add(patience))); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(r.Body); r.ContentLength > 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read after the deadline: %v", err)
		}
		_, _ = w.Write([]byte("x"))
	}, defaults, patience)
	c := dial(t, addr)
	for range 2 {
		c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if r, _ := c.answer("GET"); r.Close {
			t.Errorf("%v", r)
		}
	}
	c.send("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n")
	time.Sleep(50 * time.Millisecond)
	c.send("ok")
	if r, _ := c.answer("PUT"); r.StatusCode != 200 {
		t.Errorf("%v", r)
	}
}

// A panic ends one connection and nothing else.
func TestPanicsEndTheConnection(t *testing.T) {
	addr, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("planted")
		}
	}, defaults, patience)
	c := dial(t, addr)
	c.send("GET /panic HTTP/1.1\r\nHost: a\r\n\r\n")
	c.closed()
	c = dial(t, addr)
	c.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	c.answer("GET")
}

// A request without a body allocates once: its head.
func TestRequestsDoNotAllocate(t *testing.T) {
	addr, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }, defaults, patience)
	c := dial(t, addr)
	request := []byte("GET /bucket/key HTTP/1.1\r\nHost: a\r\nX-Amz-Date: 20260101T000000Z\r\nAuthorization: x\r\n\r\n")
	var one [1 << 10]byte
	n := testing.AllocsPerRun(200, func() {
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(one[:]); err != nil {
			t.Fatal(err)
		}
	})
	if n > 2 {
		t.Errorf("%.0f allocations", n)
	}
}
