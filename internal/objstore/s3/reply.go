package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// reply is the answer to a plain request.
type reply struct {
	status int
	length int64 // that the answer says; -1: it says none
	// Header fields; empty where the answer has none.
	etag, date, modified, checksum, replication, contentRange, version string
	// body is what was read: an object up to the limit of its request, or the text of another answer. unread
	// says that there is more than the limit; err that the body ended before its end, or is longer than any
	// answer.
	body   []byte
	unread bool
	err    error
}

// field gives where the value of a header field goes; nil for a field that nobody reads.
func (p *reply) field(name []byte) *string {
	switch {
	case is(name, "etag"):
		return &p.etag
	case is(name, "date"):
		return &p.date
	case is(name, "last-modified"):
		return &p.modified
	case is(name, "x-amz-checksum-sha256"):
		return &p.checksum
	case is(name, "x-amz-replication-status"):
		return &p.replication
	case is(name, "content-range"):
		return &p.contentRange
	case is(name, "x-amz-version-id"):
		return &p.version
	}
	return nil
}

// is compares the name of a header field with one in lower case.
func is(name []byte, lower string) bool {
	if len(name) != len(lower) {
		return false
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// isObject reports whether the body is that of an object.
func (p *reply) isObject(method string) bool {
	return method == http.MethodGet && (p.status == http.StatusOK || p.status == http.StatusPartialContent)
}

// readBody reads the body; rest reports whether the end of the answer was reached.
func (p *reply) readBody(from io.Reader, r *plainRequest) (rest bool) {
	switch {
	case r.method == http.MethodHead || p.length == 0 && !p.isObject(r.method):
		return true
	case p.isObject(r.method):
		if p.length < 0 || p.length > r.limit {
			p.unread = true
			return false
		}
		p.body = make([]byte, p.length)
		_, p.err = io.ReadFull(from, p.body)
		return p.err == nil
	case p.length > 0 && p.length <= maxAnswer:
		p.body = make([]byte, p.length)
		n, err := io.ReadFull(from, p.body)
		p.body = p.body[:n]
		if err != nil {
			p.err = fmt.Errorf("cut answer of status %d: %w", p.status, err)
		}
		return err == nil
	}
	// One byte more than the bound, so that a longer answer differs from one of exactly that size.
	b, err := io.ReadAll(io.LimitReader(from, maxAnswer+1))
	switch {
	case err != nil:
		p.err = fmt.Errorf("cut answer of status %d: %w", p.status, err)
	case len(b) > maxAnswer:
		b, p.err = b[:maxAnswer], fmt.Errorf("answer of status %d has over %d bytes", p.status, maxAnswer)
	}
	p.body = b
	return p.err == nil
}

// head takes status and header of an answer of net/http.
func (p *reply) head(resp *http.Response) {
	h := resp.Header
	*p = reply{
		status: resp.StatusCode, length: resp.ContentLength, etag: h.Get("Etag"), date: h.Get("Date"), modified: h.Get("Last-Modified"),
		checksum: h.Get("X-Amz-Checksum-Sha256"), replication: h.Get("X-Amz-Replication-Status"), contentRange: h.Get("Content-Range"),
	}
}

// replyOf reads an answer of another transport.
func replyOf(resp *http.Response, r *plainRequest) (p reply) {
	defer resp.Body.Close()
	p.head(resp)
	if p.readBody(resp.Body, r) {
		// A transport keeps the connection once it was read to its end.
		_, _ = io.CopyN(io.Discard, resp.Body, 1)
	}
	return p
}

// parseReply parses the head of an answer, which b begins with, where its form is the usual one. It returns the
// length of the head; 0 leaves the answer to net/http, whose rules for everything else are long. What it parses,
// net/http parses to the same.
func (p *reply) parseReply(b []byte) int {
	const version = "HTTP/1.1 "
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < len(version)+4 || string(b[:len(version)]) != version {
		return 0
	}
	head := b[len(version) : end+2]
	for i, c := range head {
		// Control characters, also a lone line feed or carriage return, and what is no ASCII.
		if c < ' ' && !(c == '\r' && head[i+1] == '\n' || c == '\n' && i > 0 && head[i-1] == '\r') || c >= 0x7f {
			return 0
		}
	}
	line := bytes.IndexByte(head, '\r')
	if line < 4 || head[3] != ' ' || head[0] < '2' || head[0] > '9' || !isDigit(head[1]) || !isDigit(head[2]) {
		return 0
	}
	status := int(head[0]-'0')*100 + int(head[1]-'0')*10 + int(head[2]-'0')
	if status == http.StatusNoContent || status == http.StatusNotModified {
		return 0 // without a body, whatever the header says
	}
	*p = reply{status: status, length: -1}
	for head = head[line+2:]; len(head) > 0; {
		line = bytes.IndexByte(head, '\r')
		colon := bytes.IndexByte(head[:line], ':')
		if colon <= 0 {
			return 0
		}
		name, value := head[:colon], bytes.Trim(head[colon+1:line], " ")
		head = head[line+2:]
		for _, c := range name {
			if !tokens[c] {
				return 0
			}
		}
		switch {
		case is(name, "content-length"):
			if p.length >= 0 || len(value) == 0 || len(value) > 15 {
				return 0
			}
			p.length = 0
			for _, c := range value {
				if !isDigit(c) {
					return 0
				}
				p.length = p.length*10 + int64(c-'0')
			}
		case is(name, "connection"):
			if !is(value, "keep-alive") { // which is what HTTP/1.1 means anyway
				return 0
			}
		case is(name, "transfer-encoding"), is(name, "trailer"):
			return 0
		default:
			to := p.field(name)
			switch {
			case to == nil:
			case len(value) == 0 || *to != "": // twice
				return 0
			default:
				*to = p.text(to, value)
			}
		}
	}
	if p.length < 0 {
		return 0
	}
	return end + 4
}

// text is a value as a string. The date is the same for all answers of a second.
func (p *reply) text(to *string, value []byte) string {
	if to != &p.date {
		return string(value)
	}
	if last := lastDate.Load(); last != nil && last.text == string(value) {
		return last.text
	}
	return string(value)
}

// parsedDate is a Date of answers, and its time.
type parsedDate struct {
	text string
	at   time.Time
}

var lastDate atomic.Pointer[parsedDate]

// parseDate parses a Date; it gives the zero time for one that is none.
func parseDate(text string) time.Time {
	if last := lastDate.Load(); last != nil && last.text == text {
		return last.at
	}
	at, err := http.ParseTime(text)
	if err == nil {
		lastDate.Store(&parsedDate{text, at})
	}
	return at
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// tokens are the characters of names of header fields.
var tokens = func() (t [256]bool) {
	for c := range 0x7f {
		t[c] = c > ' ' && !bytes.ContainsRune([]byte(`"(),/:;<=>?@[\]{}`), rune(c))
	}
	return t
}()

// ask sends a request that was written into out, by the rules of RoundTrip.
func (d *direct) ask(ctx context.Context, to place, r *plainRequest, out []byte) (reply, error) {
	for fresh := false; ; {
		c, err := d.take(ctx, to, fresh)
		if err != nil {
			return reply{}, err
		}
		p, err := c.ask(ctx, r, out)
		if err == nil {
			return p, nil
		}
		if err == errStale {
			continue
		}
		if cause := ctx.Err(); cause != nil {
			return reply{}, fmt.Errorf("%w (%v)", cause, err)
		}
		if !c.reused || !errors.Is(err, errNoAnswer) || r.method != http.MethodGet && r.method != http.MethodHead {
			return reply{}, err
		}
		fresh = true
	}
}

// ask sends a request and reads its answer. Then the connection goes back to the pool. errStale: nothing was sent.
func (c *pooled) ask(ctx context.Context, r *plainRequest, out []byte) (p reply, err error) {
	if c.reused && !c.socket.plain && !c.quiet() {
		c.release(false)
		return p, errStale
	}
	base, deadline := objstore.Untimed(ctx)
	c.setDeadline(deadline)
	stop := context.AfterFunc(base, c.interrupt)
	keep := false
	defer func() {
		// A connection of which the context ended in between has a deadline by now.
		c.release(stop() && keep && c.in.Buffered() == 0)
	}()
	if err = c.sendPlain(out); err != nil {
		return p, err
	}
	keep, err = c.readReply(&p, r)
	if p.err != nil {
		if cause := ctx.Err(); cause != nil {
			p.err = fmt.Errorf("%w (%v)", cause, p.err) // callers check for it, and not for the deadline that ended the read
		}
	}
	return p, err
}

// sendPlain writes a request. Where that is possible it has also waited for an answer.
func (c *pooled) sendPlain(out []byte) error {
	if c.socket.plain {
		n, idle, err := c.socket.send(out)
		switch {
		case !idle && c.reused:
			return errStale
		case err != nil && n == len(out):
			return fmt.Errorf("%w: %w", errNoAnswer, err)
		case err != nil:
			return err
		case n == len(out):
			return nil
		}
		out = out[n:]
	}
	_, err := c.Write(out)
	return err
}

// setDeadline sets when reads and writes end; the zero time is never.
func (c *pooled) setDeadline(at time.Time) {
	if !c.ends.IsZero() || !at.IsZero() {
		_ = c.SetDeadline(at) // a connection that is closed shows in Write
		c.ends = at
	}
}

// readReply reads an answer; keep reports whether the connection may be used again.
func (c *pooled) readReply(p *reply, r *plainRequest) (keep bool, err error) {
	c.left = maxAnswerHeader
	_, err = c.in.Peek(1)
	if err == nil {
		b, _ := c.in.Peek(c.in.Buffered())
		if n := p.parseReply(b); n > 0 {
			c.left = math.MaxInt64
			_, _ = c.in.Discard(n)
			if r.method == http.MethodHead {
				return true, nil
			}
			return p.readBody(c.in, r), nil
		}
	}
	// It also gives the error of an answer that did not come.
	resp, err := c.readAnswer(&http.Request{Method: r.method})
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	p.head(resp)
	keep = p.readBody(resp.Body, r) && !resp.Close
	if keep {
		_, end := io.CopyN(io.Discard, resp.Body, 1)
		keep = errors.Is(end, io.EOF) // the trailer of a chunked answer was read
	}
	return keep, nil
}
