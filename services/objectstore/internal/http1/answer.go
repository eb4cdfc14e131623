package http1

import (
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

// smallWrite is the largest number of body bytes that wait for the end of the handler. More are sent at once.
const smallWrite = 16 << 10

// answer is the http.ResponseWriter of a connection. The status line and the header are written into out by WriteHeader,
// and stay open until the length of the body is known, or more of it is there than should wait.
type answer struct {
	c      *conn
	header http.Header

	status   int   // 0: WriteHeader was not called
	declared int64 // Content-Length as the handler has set it; -1: it has not
	given    int64 // bytes of the body that the handler has given
	bodiless bool  // HEAD, 204 or 304
	dated    bool  // the handler has set Date
	sealed   bool  // the head is complete
	chunks   bool  // the body is sent in chunks
	close    bool  // the connection ends with the answer
	failed   error // of a write

	buffers *buffers
}

// buffers hold what was not sent yet.
type buffers struct {
	out     []byte // the head; behind it, once it is sealed, the body
	pending []byte // the body, until the head is sealed
}

var pool = sync.Pool{New: func() any { return &buffers{make([]byte, 0, 1<<10), nil} }}

func (a *answer) begin(c *conn) {
	clear(a.header)
	*a = answer{c: c, header: a.header, declared: -1, close: c.request.Close}
	if c.paced {
		c.writeBy, c.paced = time.Time{}, false
	}
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// SetReadDeadline serves http.ResponseController. It is for the body: the next request has a deadline of its own.
func (a *answer) SetReadDeadline(t time.Time) error { return a.c.nc.SetReadDeadline(t) }

// SetWriteDeadline serves http.ResponseController. Without one writes have a deadline that moves on with them.
func (a *answer) SetWriteDeadline(t time.Time) error {
	a.c.writeBy, a.c.paced = time.Time{}, !t.IsZero()
	if !a.c.paced {
		return nil // the next write sets one
	}
	return a.c.nc.SetWriteDeadline(t)
}

// WriteHeader implements http.ResponseWriter. Of the interim answers it sends 100 Continue.
func (a *answer) WriteHeader(status int) {
	switch {
	case a.status != 0:
		a.c.server.Log.Warn("a handler has answered twice", "status", a.status, "second", status)
		return
	case status == http.StatusContinue:
		_ = a.sendContinue() // a failure is met again by the answer
		return
	case status < 200:
		return
	}
	a.status = status
	a.bodiless = a.c.request.Method == http.MethodHead || status == http.StatusNoContent || status == http.StatusNotModified
	a.buffers = pool.Get().(*buffers)
	a.buffers.out = a.appendHead(a.buffers.out[:0])
}

func (a *answer) sendContinue() error {
	a.c.body.continueDue = false
	return a.c.write([]byte("HTTP/1.1 100 Continue\r\n\r\n"))
}

// appendHead writes the status line and the fields that the handler has set.
func (a *answer) appendHead(b []byte) []byte {
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(a.status), 10)
	b = append(append(append(b, ' '), http.StatusText(a.status)...), "\r\n"...)
	for name, values := range a.header {
		switch name {
		case "Content-Length":
			if n, err := strconv.ParseInt(a.header.Get(name), 10, 64); err == nil && n >= 0 {
				a.declared = n
			}
			continue
		case "Transfer-Encoding", "Connection":
			continue // the framing is not the handler's
		case "Content-Type":
			if a.status == http.StatusNotModified {
				continue
			}
		case "Date":
			a.dated = true
		}
		if !httpguts.ValidHeaderFieldName(name) {
			continue
		}
		for _, v := range values {
			b = append(append(b, name...), ": "...)
			b = append(appendValue(b, v), "\r\n"...)
		}
	}
	return b
}

// appendValue writes a field's value. A line break would begin a field of whoever has chosen the value.
func appendValue(b []byte, v string) []byte {
	v = strings.Trim(v, " \t\r\n")
	start := len(b)
	b = append(b, v...)
	for i := start; i < len(b); i++ {
		if b[i] == '\r' || b[i] == '\n' {
			b[i] = ' '
		}
	}
	return b
}

// seal completes the head. length is that of the body; -1: it is not known.
func (a *answer) seal(length int64) {
	a.sealed = true
	// Before the answer and not behind it, for clients that read nothing until they have sent everything.
	if !a.c.body.skip() || a.c.server.ending.Load() {
		a.close = true
	}
	b := a.buffers.out
	if !a.dated {
		b = append(append(append(b, "Date: "...), date()...), "\r\n"...)
	}
	switch {
	case a.status == http.StatusNoContent || a.status == http.StatusNotModified:
	case length >= 0:
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), length, 10), "\r\n"...)
	case a.bodiless:
	case a.c.request.ProtoMinor == 0:
		a.close = true // the body ends with the connection
	default:
		a.chunks = true
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	if a.close {
		b = append(b, "Connection: close\r\n"...)
	}
	a.buffers.out = append(b, "\r\n"...)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	switch {
	case a.failed != nil:
		return 0, a.failed
	case a.bodiless && a.c.request.Method != http.MethodHead:
		return 0, http.ErrBodyNotAllowed
	case a.declared >= 0 && a.given+int64(len(p)) > a.declared:
		return 0, http.ErrContentLength
	}
	a.given += int64(len(p))
	if a.bodiless || len(p) == 0 {
		return len(p), nil
	}
	q := a.buffers
	if !a.sealed {
		if len(q.pending)+len(p) <= smallWrite {
			q.pending = append(q.pending, p...)
			return len(p), nil
		}
		a.seal(a.declared)
		a.add(q.pending)
		q.pending = q.pending[:0]
	}
	if err := a.send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// add puts bytes of the body behind the head.
func (a *answer) add(p []byte) {
	q := a.buffers
	if len(p) == 0 {
		return
	}
	if a.chunks {
		q.out = append(strconv.AppendInt(q.out, int64(len(p)), 16), "\r\n"...)
	}
	if q.out = append(q.out, p...); a.chunks {
		q.out = append(q.out, "\r\n"...)
	}
}

// send sends bytes of the body, or keeps them when they are few.
func (a *answer) send(p []byte) error {
	q := a.buffers
	if len(q.out)+len(p) <= smallWrite {
		a.add(p)
		return nil
	}
	pieces := net.Buffers{q.out, p}
	if a.chunks {
		q.out = append(strconv.AppendInt(q.out, int64(len(p)), 16), "\r\n"...)
		pieces = net.Buffers{q.out, p, []byte("\r\n")}
	}
	if a.failed = a.c.boundWrite(); a.failed == nil {
		_, a.failed = pieces.WriteTo(a.c.nc)
	}
	q.out = q.out[:0]
	return a.failed
}

var errShortAnswer = errors.New("the handler gave less than it declared")

// finish sends what is left of the answer.
func (a *answer) finish() error {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	q := a.buffers
	if !a.sealed {
		length := a.declared
		if length < 0 && (a.given > 0 || !a.bodiless) {
			length = a.given
		}
		a.seal(length)
		a.add(q.pending)
	}
	if a.chunks {
		q.out = append(q.out, "0\r\n\r\n"...)
	}
	err := a.failed
	if err == nil && len(q.out) > 0 {
		err = a.c.write(q.out)
	}
	if err == nil && !a.bodiless && a.declared > a.given {
		err = errShortAnswer
	}
	a.release()
	return err
}

// release gives the buffers back, those of an ordinary size.
func (a *answer) release() {
	q := a.buffers
	a.buffers = nil
	if cap(q.out) <= 4*smallWrite && cap(q.pending) <= 4*smallWrite {
		q.out, q.pending = q.out[:0], q.pending[:0]
		pool.Put(q)
	}
}

// dateText is an HTTP date, which is made once a second.
type dateText struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[dateText]

func date() string {
	now := time.Now()
	d := lastDate.Load()
	if d == nil || d.second != now.Unix() {
		d = &dateText{now.Unix(), now.UTC().Format(http.TimeFormat)}
		lastDate.Store(d)
	}
	return d.text
}
