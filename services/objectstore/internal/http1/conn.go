package http1

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// States of a connection.
const (
	idle   int32 = iota // waits for a request, and may be closed at any time
	active              // has the first byte of a request
	closed
)

const (
	// inputSize is the memory, bytes, that every connection has for input: most requests, with a small body.
	inputSize = 8 << 10
	// keepFields is the largest number of header fields for which a connection keeps the memory.
	keepFields = 64
)

// conn is one connection. Everything below state is used by its own goroutine only; handlers may set deadlines from
// others.
type conn struct {
	server *Server
	nc     net.Conn
	raw    net.Conn // below TLS
	state  atomic.Int32
	since  atomic.Int64 // when it became idle, nanoseconds
	placed bool         // counts as one of Server.MaxConns; of Server.mu

	in         []byte // bytes read: in[begin:end] are not used yet
	begin, end int

	blank   *http.Request // what every request begins with
	request http.Request
	url     url.URL
	header  http.Header
	values  []string
	body    body
	answer  answer
	writeBy time.Time // deadline of writes; zero: the next write sets one
	paced   bool      // the handler sets the deadlines of writes
}

func newConn(ctx context.Context, s *Server, raw net.Conn) *conn {
	nc := raw
	if s.TLS != nil {
		nc = tls.Server(raw, s.TLS)
	}
	c := &conn{server: s, nc: nc, raw: raw, in: make([]byte, inputSize), header: http.Header{}}
	c.blank = (&http.Request{RemoteAddr: nc.RemoteAddr().String(), Header: c.header}).WithContext(ctx)
	c.answer.header = http.Header{}
	c.since.Store(time.Now().UnixNano())
	return c
}

// serve serves requests one after another, until one side wants no more.
func (c *conn) serve() {
	for first := true; ; first = false {
		head, err := c.readHead(first)
		if err == nil {
			err = c.parse(head)
		}
		if err != nil {
			var bad *refusal
			if errors.As(err, &bad) {
				c.refuse(bad)
			}
			return
		}
		keep := c.handle()
		c.reuse()
		if !keep {
			return
		}
		c.since.Store(time.Now().UnixNano())
		c.state.Store(idle)
		// Read after the state was stored, as closeIdle reads the state after ending was.
		if c.server.ending.Load() {
			return
		}
	}
}

// refusal is the answer to what is no request.
type refusal struct {
	status int
	reason string
}

func (r *refusal) Error() string { return r.reason }

func bad(reason string) error { return &refusal{http.StatusBadRequest, reason} }

// refuse answers bytes that are no request. Nobody knows where the next one would begin.
func (c *conn) refuse(r *refusal) {
	text := fmt.Sprintf("%d %s: %s\n", r.status, http.StatusText(r.status), r.reason)
	_ = c.write(fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		r.status, http.StatusText(r.status), len(text), text)) // the client went away: nothing to do
	c.linger()
}

// readHead reads a request's head, with its empty line. The string is a copy, and so are the request's fields, which
// are parts of it.
func (c *conn) readHead(first bool) (string, error) {
	bounded := first // the head has its deadline
	if c.begin == c.end {
		c.begin, c.end = 0, 0
	}
	wait := c.server.timeouts.idle
	if first {
		wait = c.server.timeouts.head
	}
	if err := c.nc.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	started := false
	var end headEnd
	for {
		if c.begin < c.end && !started {
			started = true
			if !c.state.CompareAndSwap(idle, active) {
				return "", net.ErrClosed
			}
		}
		text := c.in[c.begin:c.end]
		n, err := end.find(text)
		if err != nil {
			return "", err
		}
		if max(n, end.scanned) > maxHead {
			return "", errLongHead
		}
		if n > 0 {
			c.begin += n
			return string(text[:n]), nil
		}
		if started && !bounded {
			// Set once the head turns out to be incomplete: most heads come with one read.
			bounded = true
			if err := c.nc.SetReadDeadline(time.Now().Add(c.server.timeouts.head)); err != nil {
				return "", err
			}
		}
		if err := c.fill(); err != nil {
			return "", err
		}
	}
}

// headEnd finds the empty line that ends a head, in a text that grows.
type headEnd struct {
	line    int // where the line begins that is being scanned
	scanned int // what was scanned, bytes
}

// find gives the length of the head with its empty line; 0 while that has not come.
func (h *headEnd) find(text []byte) (int, error) {
	for {
		i := bytes.IndexByte(text[h.scanned:], '\n')
		if i < 0 {
			h.scanned = len(text)
			return 0, nil
		}
		at := h.scanned + i
		// A line that ends with LF alone ends elsewhere for those who want CRLF.
		if at == h.line || text[at-1] != '\r' {
			return 0, bad("a line of the head does not end with CRLF")
		}
		h.scanned = at + 1
		if at-1 == h.line {
			return h.scanned, nil
		}
		h.line = h.scanned
	}
}

var errLongHead = &refusal{http.StatusRequestHeaderFieldsTooLarge, "the head is too long"}

// fill reads more input behind what there is.
func (c *conn) fill() error {
	if c.end == len(c.in) {
		text := c.in[c.begin:c.end]
		if c.begin == 0 {
			c.in = make([]byte, 2*len(c.in)) // at most twice maxHead
		}
		c.begin, c.end = 0, copy(c.in, text)
	}
	n, err := c.nc.Read(c.in[c.end:])
	c.end += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// read reads input into p: what was read ahead first.
func (c *conn) read(p []byte) (int, error) {
	if c.begin < c.end {
		n := copy(p, c.in[c.begin:c.end])
		c.begin += n
		return n, nil
	}
	if len(p) >= inputSize {
		return c.nc.Read(p)
	}
	c.begin, c.end = 0, 0
	if err := c.fill(); err != nil {
		return 0, err
	}
	n := copy(p, c.in[:c.end])
	c.begin = n
	return n, nil
}

// write writes all of b, within a deadline. The deadline is moved when half of it has passed, and not for every write.
func (c *conn) write(b []byte) error {
	if err := c.boundWrite(); err != nil {
		return err
	}
	_, err := c.nc.Write(b)
	return err
}

func (c *conn) boundWrite() error {
	if c.paced {
		return nil
	}
	now, most := time.Now(), c.server.timeouts.write
	if c.writeBy.Sub(now) >= most/2 {
		return nil
	}
	c.writeBy = now.Add(most)
	return c.nc.SetWriteDeadline(c.writeBy)
}

// handle calls the handler for the request that was parsed. It reports whether the connection can be used for another.
func (c *conn) handle() (keep bool) {
	a := &c.answer
	a.begin(c)
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		// The answer ends where it is, which the client notices by its length.
		keep = false
		if cause != http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
			c.server.Log.Error("a handler panicked", "error", cause, "stack", string(debug.Stack()))
		}
	}()
	c.server.Handler.ServeHTTP(a, &c.request)
	err := a.finish()
	if err == nil && !a.close {
		return true
	}
	if err == nil && c.body.unread() {
		c.linger()
	}
	return false
}

// linger ends the answer's direction and reads the rest of the input for a while. A close at once would make the kernel
// reset the connection, and the client might lose the answer.
func (c *conn) linger() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil || c.nc.SetReadDeadline(time.Now().Add(c.server.timeouts.linger)) != nil {
		return
	}
	for {
		if _, err := c.nc.Read(c.in); err != nil {
			return
		}
	}
}

// reuse forgets the request. Memory that only large requests need is given back.
func (c *conn) reuse() {
	if len(c.header) > keepFields {
		c.header = http.Header{}
		c.blank.Header = c.header
	}
	if cap(c.values) > 2*keepFields { // also where many fields have one name
		c.values = nil
	}
	if len(c.answer.header) > keepFields {
		c.answer.header = http.Header{}
	}
	if len(c.in) > inputSize && c.end-c.begin <= inputSize {
		in := make([]byte, inputSize)
		c.begin, c.end, c.in = 0, copy(in, c.in[c.begin:c.end]), in
	}
	c.request = *c.blank
	clear(c.header)
	clear(c.values)
}
