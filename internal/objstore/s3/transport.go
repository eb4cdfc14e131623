package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpguts"
)

// roundTripper gives what sends requests to base. It is Go's transport where a proxy is set up for
// base, or where an idle connection can't be checked.
func (c Config) roundTripper(base *url.URL) (http.RoundTripper, error) {
	t, err := c.transport()
	if err != nil {
		return nil, err
	}
	proxy, err := t.Proxy(&http.Request{URL: base})
	if err != nil {
		return nil, fmt.Errorf("s3: proxy: %w", err)
	}
	// Go's transport also translates names of other alphabets, and removes the zone of an IPv6 address.
	odd := strings.ContainsFunc(base.Host, func(r rune) bool { return r > '~' || r == '%' })
	if proxy != nil || odd || !canCheckIdle {
		return t, nil
	}
	return newDirect(t, c.MaxConnections), nil
}

// direct sends HTTP/1.1 requests in the goroutine of the caller, on pooled connections. Go's
// transport hands each request to two other goroutines, which costs more CPU than the rest of a
// small request. Answers are parsed by net/http.
//
// A request is written at most once, but for a GET or HEAD to which a reused connection gave no
// byte of an answer. Every other failure is returned as an error, which says nothing about
// whether the request was executed. A connection is used again only when its request was written
// whole, its answer was read whole and not a byte follows, so that no answer can be taken for
// that of another request.
type direct struct {
	connections
	tls *http.Transport // its settings of TLS
}

func newDirect(t *http.Transport, most int) *direct {
	d := &direct{tls: t}
	d.connections.init(most, d.dial)
	return d
}

// dial opens a connection of place.
func (d *direct) dial(ctx context.Context, p place) (net.Conn, error) {
	addr := p.host
	if u := (url.URL{Host: p.host}); u.Port() == "" {
		addr = net.JoinHostPort(u.Hostname(), map[string]string{"http": "80", "https": "443"}[p.scheme])
	}
	switch {
	case p.scheme == "http":
		return dial(ctx, "tcp", addr)
	case d.tls.DialTLSContext != nil:
		return d.tls.DialTLSContext(ctx, "tcp", addr)
	}
	return dialTLS(ctx, "tcp", addr, d.tls.TLSClientConfig.Clone())
}

const (
	// sendAtOnce is the largest body, bytes, that is sent before the answer is read. It fits the buffers
	// of a connection, so that a server that answers without reading it blocks nobody.
	sendAtOnce = 32 << 10
	// maxAnswerHeader bounds, in bytes, the header of an answer; maxInterim the number of 1xx answers.
	maxAnswerHeader = 64 << 10
	maxInterim      = 5
	continueTimeout = time.Second
	// sentWait is how long the goroutine that sends a body may take to say so after the answer.
	sentWait = 50 * time.Millisecond
)

var (
	errNoAnswer  = errors.New("s3: the server closed the connection without an answer")
	errBigHeader = fmt.Errorf("s3: the header of the answer has over %d bytes", maxAnswerHeader)
)

// aLongTimeAgo is a deadline that ends reads and writes at once.
var aLongTimeAgo = time.Unix(1, 0)

// RoundTrip implements http.RoundTripper.
func (d *direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	out := buffers.Get().(*buffer)
	defer buffers.Put(out)
	var err error
	if out.b, err = appendHead(out.b[:0], r); err != nil {
		return nil, err
	}
	for fresh := false; ; {
		c, err := d.take(r.Context(), place{r.URL.Scheme, r.URL.Host}, fresh)
		if err != nil {
			return nil, err
		}
		if c.reused && !c.quiet() {
			c.release(false)
			continue
		}
		resp, err := c.exchange(r, out)
		if err == nil {
			return resp, nil
		}
		// The server may have closed an idle connection at the moment of its reuse. A read may be sent
		// again, a write may not: the server may have executed it.
		if cause := r.Context().Err(); cause != nil {
			return nil, fmt.Errorf("%w (%v)", cause, err)
		}
		if !c.reused || !errors.Is(err, errNoAnswer) || r.Method != http.MethodGet && r.Method != http.MethodHead {
			return nil, err
		}
		fresh = true
	}
}

// buffer holds a request while it is written: its head, and its body where both are sent at once.
type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{make([]byte, 0, 8<<10)} }}

// appendHead writes the request line and the header. It refuses what would end up as another
// request.
func appendHead(b []byte, r *http.Request) ([]byte, error) {
	hasBody := r.Body != nil && r.Body != http.NoBody
	if hasBody != (r.ContentLength > 0) || len(r.TransferEncoding) > 0 {
		return b, fmt.Errorf("s3: request with a body of %d bytes", r.ContentLength)
	}
	target, host := r.URL.RequestURI(), r.Host
	if host == "" {
		host = r.URL.Host
	}
	if !httpguts.ValidHostHeader(host) || !httpguts.ValidHeaderFieldName(r.Method) || strings.ContainsFunc(target, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return b, fmt.Errorf("s3: invalid request %q %q of host %q", r.Method, target, host)
	}
	b = append(append(append(append(b, r.Method...), ' '), target...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, host...), "\r\n"...)
	for name, values := range r.Header {
		switch name {
		case "Host", "Content-Length", "Transfer-Encoding", "Trailer":
			continue // as net/http: the request's fields count
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(v) {
				return b, fmt.Errorf("s3: invalid header %q", name)
			}
			b = append(append(append(append(b, name...), ": "...), v...), "\r\n"...)
		}
	}
	if hasBody || r.Method == http.MethodPut || r.Method == http.MethodPost {
		b = append(strconv.AppendInt(append(b, "Content-Length: "...), r.ContentLength, 10), "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

// exchange sends a request and reads the head of its answer. The connection goes back to the pool
// when the body of the answer was read, or is closed.
func (c *pooled) exchange(r *http.Request, out *buffer) (*http.Response, error) {
	ctx := r.Context()
	// Reads and writes end with the context. The deadline of a connection that is cancelled stays,
	// so it is not used again.
	c.setDeadline(time.Time{})
	stop := context.AfterFunc(ctx, c.interrupt)
	resp, whole, err := c.send(r, out)
	if err != nil {
		stop()
		c.release(false)
		return nil, err
	}
	a := &answerBody{from: resp.Body, ctx: ctx, done: func(read bool) {
		// A connection of which the context ended in between has a deadline by now.
		c.release(stop() && read && whole() && !resp.Close && c.in.Buffered() == 0)
	}}
	resp.Body = a
	if a.from == http.NoBody {
		a.finish(true)
		resp.Body = http.NoBody
	}
	return resp, nil
}

// send gives the answer, and a function that reports whether the request was written whole.
func (c *pooled) send(r *http.Request, out *buffer) (resp *http.Response, whole func() bool, err error) {
	switch {
	case r.ContentLength == 0:
		_, err = c.Write(out.b)
	case r.ContentLength <= sendAtOnce && r.Header["Expect"] == nil:
		// One write for both: a small request is one segment.
		head, n := len(out.b), int(r.ContentLength)
		out.b = slices.Grow(out.b, n)[:head+n]
		if _, err = io.ReadFull(r.Body, out.b[head:]); err == nil {
			_, err = c.Write(out.b)
		}
	default:
		return c.sendLarge(r, out.b)
	}
	if err != nil {
		return nil, nil, err
	}
	resp, err = c.readAnswer(r)
	return resp, func() bool { return true }, err
}

// sendLarge sends the body while it waits for the answer, since a server may answer before it has
// read the body, and read no more of it.
func (c *pooled) sendLarge(r *http.Request, head []byte) (*http.Response, func() bool, error) {
	if _, err := c.Write(head); err != nil {
		return nil, nil, err
	}
	if r.Header["Expect"] != nil {
		if resp, err := c.awaitContinue(r); resp != nil || err != nil {
			return resp, func() bool { return false }, err
		}
	}
	sent := make(chan error, 1)
	body, n := r.Body, r.ContentLength
	go func() {
		_, err := io.CopyN(struct{ io.Writer }{c}, body, n)
		if err != nil {
			// Ends the wait for an answer. It comes only to a request that was written whole, or from a
			// server that reads no more, and the latter is no error of a write; see conn.
			_ = c.SetDeadline(aLongTimeAgo)
		}
		sent <- err
	}()
	resp, err := c.readAnswer(r)
	whole := func() bool {
		late := time.NewTimer(sentWait)
		defer late.Stop()
		select {
		case err := <-sent:
			return err == nil
		case <-late.C:
			return false
		}
	}
	if err != nil {
		select {
		case werr := <-sent:
			if werr != nil {
				err = errors.Join(werr, err)
			}
		default:
		}
	}
	return resp, whole, err
}

// awaitContinue waits until the body may be sent: for "100 Continue", or for a while. It returns an
// answer that came in its place.
func (c *pooled) awaitContinue(r *http.Request) (*http.Response, error) {
	deadline := func(t time.Time) error {
		err := c.SetReadDeadline(t)
		if cause := r.Context().Err(); cause != nil {
			return cause // the deadline of its end may have been before, and is replaced now
		}
		return err
	}
	if err := deadline(time.Now().Add(continueTimeout)); err != nil {
		return nil, err
	}
	c.left = maxAnswerHeader
	_, err := c.in.Peek(1)
	if cause := deadline(time.Time{}); cause != nil {
		return nil, cause
	}
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() {
		return nil, nil
	}
	for range maxInterim {
		resp, err := c.readHead(r)
		if err != nil || resp.StatusCode >= http.StatusOK {
			return resp, err
		}
		if resp.StatusCode == http.StatusContinue {
			return nil, nil
		}
	}
	return nil, errors.New("s3: too many interim answers")
}

// readAnswer reads the head of the final answer.
func (c *pooled) readAnswer(r *http.Request) (*http.Response, error) {
	for range maxInterim {
		resp, err := c.readHead(r)
		if err != nil || resp.StatusCode >= http.StatusOK {
			return resp, err
		}
	}
	return nil, errors.New("s3: too many interim answers")
}

// readHead reads the head of an answer, which may be an interim one.
func (c *pooled) readHead(r *http.Request) (*http.Response, error) {
	c.left = maxAnswerHeader
	defer func() { c.left = math.MaxInt64 }()
	if _, err := c.in.Peek(1); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	resp, err := http.ReadResponse(c.in, r)
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("s3: read answer: %w", err)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return nil, errors.New("s3: the server switched protocols unasked")
	}
	return resp, nil
}

// answerBody calls done once: with true when the body was read to its end.
type answerBody struct {
	from     io.Reader
	ctx      context.Context
	done     func(read bool)
	finished bool
	err      error
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	if b.finished {
		if b.err == nil {
			return 0, http.ErrBodyReadAfterClose
		}
		return 0, b.err
	}
	n, err := b.from.Read(p)
	if err == nil {
		return n, nil
	}
	b.err = err
	if cause := b.ctx.Err(); cause != nil && !errors.Is(err, io.EOF) {
		b.err = cause // callers check for it, and not for the deadline that ended the read
	}
	b.finish(errors.Is(err, io.EOF))
	return n, b.err
}

// Close ends the use of the connection. One whose answer has an unread rest is closed, too.
func (b *answerBody) Close() error {
	b.finish(false)
	return nil
}

func (b *answerBody) finish(read bool) {
	if !b.finished {
		b.finished = true
		b.done(read)
	}
}
