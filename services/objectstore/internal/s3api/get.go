package s3api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// getObject serves GET and HEAD.
func (c *call) getObject() error {
	version, err := c.version()
	if err != nil {
		return err
	}
	if err := c.authorizeVersion("GetObject", c.bucket, c.key, version, nil); err != nil {
		return err
	}
	for _, name := range responseParams {
		if v := c.query.get(name); v != "" {
			if err := checkField(name, v); err != nil {
				return err
			}
		}
	}
	head := c.r.Method == http.MethodHead
	if c.query.has("partNumber") {
		if _, err := c.partNumber(); err != nil {
			return err
		}
		if c.r.Header.Get("Range") != "" {
			return s3err.InvalidRequest.With("Cannot specify both Range header and partNumber query parameter")
		}
	}
	var o engine.Object
	var body *engine.Handle
	if head {
		o, err = c.Engine.StatVersion(c.bucket, c.key, version)
	} else if body, err = c.Engine.GetVersion(c.bucket, c.key, version); err == nil {
		defer body.Close()
		o = body.Object
	}
	if err != nil {
		return c.absent(version, err)
	}
	h := c.w.Header()
	c.setVersion(c.bucket, versionHeader, o.Version)
	if c.Engine.MaybeOlder(o.Seq) {
		c.setHeader(uncertainHeader, "true")
	}
	c.setHeader("ETag", `"`+o.ETag+`"`)
	c.setHeader("Last-Modified", o.Modified.UTC().Format(http.TimeFormat))
	for _, p := range o.Headers {
		// RFC 9110 asks for these two in a 304 as well, so they are set before the conditions.
		if p.Name == "cache-control" || p.Name == "expires" {
			h.Set(p.Name, p.Value)
		}
	}
	if err := readConditionsOf(c.r.Header).check(o.ETag, o.Modified); err != nil {
		return err
	}
	var off, n int64
	var status int
	if c.query.has("partNumber") {
		off, n, status, err = c.partOf(&o)
	} else {
		off, n, status, err = c.rangeOf(&o)
	}
	if err != nil {
		return err
	}
	c.writeObjectHeaders(h, &o, status)
	c.setExpiration(&o)
	if status == http.StatusPartialContent {
		c.setHeader("Content-Range", fmt.Sprintf("bytes %d-%d/%d", off, off+n-1, o.Size))
	}
	c.setHeader("Content-Length", strconv.FormatInt(n, 10))
	if head {
		c.w.WriteHeader(status)
		return nil
	}
	return c.send(body, off, n, status)
}

// writeObjectHeaders sets the headers that come with the object.
func (c *call) writeObjectHeaders(h http.Header, o *engine.Object, status int) {
	c.setHeader("Accept-Ranges", "bytes")
	c.setHeader("X-Amz-Storage-Class", "STANDARD")
	c.setEncryption(o.Sealed())
	c.setLockHeaders(o.Lock)
	c.setHeader("Content-Type", "binary/octet-stream")
	for _, p := range o.Headers {
		h.Set(p.Name, p.Value)
	}
	for _, p := range o.User {
		// Not Set, which would write X-Amz-Meta-Name: SDKs show the name as it comes, and
		// programs that look their own lower-case name up would not find it.
		h["x-amz-meta-"+p.Name] = []string{p.Value}
	}
	if len(o.Tags) > 0 {
		h.Set("X-Amz-Tagging-Count", strconv.Itoa(len(o.Tags)))
	}
	// A part of a body does not hash to the checksum of the whole.
	if strings.EqualFold(c.r.Header.Get("X-Amz-Checksum-Mode"), "ENABLED") && status == http.StatusOK {
		c.setChecksum(o.Checksum)
	}
	for _, name := range responseParams {
		if len(c.query) == 0 {
			break
		}
		if v := c.query.get(name); v != "" {
			h.Set(strings.TrimPrefix(name, "response-"), v)
		}
	}
}

// partOf reads partNumber. An object that was not made of parts is one part.
func (c *call) partOf(o *engine.Object) (off, n int64, status int, err error) {
	number, err := c.partNumber()
	if err != nil {
		return 0, 0, 0, err
	}
	count := max(len(o.PartSizes), 1)
	if number > count {
		return 0, 0, 0, s3err.InvalidPartNumber.Detail("ActualPartCount", strconv.Itoa(count)).Detail("PartNumberRequested", strconv.Itoa(number))
	}
	if o.PartSizes == nil {
		n = o.Size
	} else {
		c.w.Header().Set("X-Amz-Mp-Parts-Count", strconv.Itoa(count))
		for _, size := range o.PartSizes[:number-1] {
			off += size
		}
		n = o.PartSizes[number-1]
	}
	if n == 0 {
		return 0, 0, http.StatusOK, nil
	}
	return off, n, http.StatusPartialContent, nil
}

// rangeOf reads Range and If-Range. A range that it cannot parse is ignored, as by AWS.
func (c *call) rangeOf(o *engine.Object) (off, n int64, status int, err error) {
	text := c.r.Header.Get("Range")
	if text == "" {
		return 0, o.Size, http.StatusOK, nil
	}
	if cond := c.r.Header.Get("If-Range"); cond != "" {
		t, terr := http.ParseTime(cond)
		same := terr == nil && o.Modified.Truncate(time.Second).Equal(t)
		if !same && (strings.HasPrefix(cond, "W/") || unquote(cond) != o.ETag) {
			return 0, o.Size, http.StatusOK, nil
		}
	}
	first, last, ok := parseRange(text, o.Size)
	if !ok {
		return 0, o.Size, http.StatusOK, nil
	}
	if first > last {
		c.w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", o.Size))
		return 0, 0, 0, s3err.InvalidRange.Detail("RangeRequested", text).Detail("ActualObjectSize", strconv.FormatInt(o.Size, 10))
	}
	return first, last - first + 1, http.StatusPartialContent, nil
}

// parseRange reads a single range; ok is false for anything else. first > last is a range that
// cannot be satisfied.
func parseRange(text string, size int64) (first, last int64, ok bool) {
	spec, found := strings.CutPrefix(text, "bytes=")
	a, b, dash := strings.Cut(spec, "-")
	if !found || !dash {
		return 0, 0, false
	}
	num := func(s string) (int64, bool) {
		n, err := strconv.ParseInt(s, 10, 64)
		return n, err == nil && n >= 0 && s[0] != '+'
	}
	if a == "" {
		n, ok := num(b)
		if !ok {
			return 0, 0, false
		}
		if n == 0 {
			return 1, 0, true
		}
		if size == 0 {
			return 0, 0, false // the last bytes of nothing are all of it
		}
		return max(0, size-n), size - 1, true
	}
	if first, ok = num(a); !ok {
		return 0, 0, false
	}
	last = size - 1
	if b != "" {
		n, ok := num(b)
		if !ok || n < first {
			return 0, 0, false
		}
		last = min(last, n)
	}
	if first >= size {
		return 1, 0, true
	}
	return first, last, true
}

// send writes the answer. The status is sent with the first verified bytes, so that damage at the
// start is an error answer; damage that is found later cuts the connection.
func (c *call) send(body *engine.Handle, off, n int64, status int) error {
	if n == 0 {
		c.w.WriteHeader(status)
		return nil
	}
	w := &answer{c: c, status: status}
	err := body.Copy(w, off, n)
	if w.deadline {
		_ = c.conn.SetWriteDeadline(time.Time{}) // of a connection that is gone at worst
	}
	switch {
	case err == nil:
		return nil
	case !w.begun:
		c.dropObjectHeaders()
		return err
	}
	return fmt.Errorf("%w: %w", errAborted, err)
}

// dropObjectHeaders leaves of an answer that has not begun what is of the request and not of the object: an error with the
// rest would look like the object, to caches too.
func (c *call) dropObjectHeaders() {
	for name := range c.w.Header() {
		switch {
		case name == requestIDHeader, name == "Server", name == "Vary", name == uncertainHeader, strings.HasPrefix(name, "Access-Control-"):
		default:
			delete(c.w.Header(), name)
		}
	}
}

// answer sends the status with the first write, and gives the client IdleTimeout for each piece.
type answer struct {
	c               *call
	status          int
	begun, deadline bool
}

// smallAnswer fits the socket's buffer, so it needs no deadline.
const smallAnswer = 64 << 10

func (a *answer) Write(p []byte) (int, error) {
	if !a.begun {
		a.begun = true
		a.c.w.WriteHeader(a.status)
	}
	total := 0
	for len(p) > 0 {
		piece := p[:min(len(p), 256<<10)]
		if len(piece) > smallAnswer || a.deadline {
			a.deadline = true
			// A socket deadline is wall time by nature.
			_ = a.c.conn.SetWriteDeadline(time.Now().Add(a.c.IdleTimeout))
		}
		n, err := a.c.w.Write(piece)
		total += n
		if err != nil {
			return total, err
		}
		p = p[n:]
	}
	return total, nil
}
