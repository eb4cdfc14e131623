package http1

import (
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// parse reads a request's head, with its empty line, into c.request. Its errors are refusals.
func (c *conn) parse(head string) error {
	r := &c.request
	*r = *c.blank
	clear(c.header)
	line, rest, _ := strings.Cut(head, "\r\n")
	if err := c.parseLine(line); err != nil {
		return err
	}
	if err := c.parseFields(rest); err != nil {
		return err
	}
	if err := c.findHost(); err != nil {
		return err
	}
	if err := c.frame(); err != nil {
		return err
	}
	switch expect := c.header["Expect"]; {
	case len(expect) == 0:
	case len(expect) > 1 || !strings.EqualFold(expect[0], "100-continue"):
		return &refusal{http.StatusExpectationFailed, "the expectation is not known"}
	case r.ProtoMinor == 1 && r.ContentLength != 0:
		c.body.continueDue = true
	}
	// Connections of HTTP/1.0 are never kept.
	r.Close = r.ProtoMinor == 0 || len(r.TransferEncoding) > 0 || httpguts.HeaderValuesContainsToken(c.header["Connection"], "close")
	return nil
}

// parseLine reads the request line.
func (c *conn) parseLine(line string) error {
	r := &c.request
	method, rest, ok := strings.Cut(line, " ")
	target, proto, ok2 := strings.Cut(rest, " ")
	if !ok || !ok2 || !httpguts.ValidHeaderFieldName(method) { // a method is a token, too
		return bad("malformed request line")
	}
	r.Method, r.RequestURI, r.Proto, r.ProtoMajor = method, target, proto, 1
	if err := c.parseTarget(); err != nil {
		return err
	}
	switch proto {
	case "HTTP/1.1":
		r.ProtoMinor = 1
		return nil
	case "HTTP/1.0":
		return nil
	}
	if _, _, ok := http.ParseHTTPVersion(proto); ok {
		return &refusal{http.StatusHTTPVersionNotSupported, "only HTTP/1.1 and HTTP/1.0 are served"}
	}
	return bad("malformed HTTP version")
}

func (c *conn) parseTarget() error {
	r := &c.request
	target := r.RequestURI
	if path, query, asked := strings.Cut(target, "?"); len(path) > 1 && path[0] == '/' && path[1] != '/' && isPlain(path) && isVisible(query) && (query != "" || !asked) {
		// Needs no decoding: the form of nearly every request.
		c.url = url.URL{Path: path, RawQuery: query}
		r.URL = &c.url
		return nil
	}
	if target == "*" {
		return bad("* is the target of no request here")
	}
	authority := r.Method == http.MethodConnect && !strings.HasPrefix(target, "/")
	if authority {
		target = "http://" + target
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return bad("malformed target")
	}
	if authority {
		u.Scheme = ""
	}
	r.URL = u
	return nil
}

// isPlain reports whether a path consists of what is never encoded, and never decoded.
func isPlain(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '/', c == '-', c == '_', c == '.', c == '~':
		default:
			return false
		}
	}
	return true
}

// isVisible reports whether a query has only visible ASCII, and no fragment.
func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || s[i] == '#' {
			return false
		}
	}
	return true
}

// parseFields reads the header fields into c.header, under their canonical names.
func (c *conn) parseFields(text string) error {
	// Every value of a field that comes once is a slice of c.values.
	n := strings.Count(text, "\r\n")
	if cap(c.values) < n {
		c.values = make([]string, 0, max(n, 16))
	}
	c.values = c.values[:0]
	for {
		line, rest, _ := strings.Cut(text, "\r\n")
		if line == "" {
			return nil
		}
		text = rest
		name, value, err := parseField(line)
		if err != nil {
			return err
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		if before := c.header[name]; before != nil {
			c.header[name] = append(before, value)
			continue
		}
		i := len(c.values)
		c.values = append(c.values, value)
		c.header[name] = c.values[i : i+1 : i+1]
	}
}

func parseField(line string) (name, value string, err error) {
	name, value, ok := strings.Cut(line, ":")
	// Among others this refuses a line that continues the one before, and spaces before the colon.
	if !ok || !httpguts.ValidHeaderFieldName(name) {
		return "", "", bad("malformed header name")
	}
	value = strings.Trim(value, " \t")
	if !httpguts.ValidHeaderFieldValue(value) {
		return "", "", bad("malformed header value")
	}
	return name, value, nil
}

// findHost takes the host out of the header. That of an absolute target counts before it (RFC 9112, section 3.2.2).
func (c *conn) findHost() error {
	r := &c.request
	hosts := c.header["Host"]
	switch {
	case len(hosts) > 1:
		return bad("more than one Host")
	case len(hosts) == 1 && !httpguts.ValidHostHeader(hosts[0]):
		return bad("malformed Host")
	case len(hosts) == 0 && r.ProtoMinor == 1 && r.Method != http.MethodConnect:
		return bad("no Host")
	}
	if r.Host = r.URL.Host; r.Host == "" && len(hosts) == 1 {
		r.Host = hosts[0]
	}
	delete(c.header, "Host")
	return nil
}

var chunked = []string{"chunked"}

// frame finds out where the body ends. Whatever others could read in another way is refused: two lengths, even equal
// ones, or a length and a transfer encoding (request smuggling; RFC 9112, section 6).
func (c *conn) frame() error {
	r := &c.request
	lengths, codings := c.header["Content-Length"], c.header["Transfer-Encoding"]
	switch {
	case len(codings) > 0 && len(lengths) > 0:
		return bad("both Content-Length and Transfer-Encoding")
	case len(codings) > 0 && r.ProtoMinor == 0:
		return bad("Transfer-Encoding in HTTP/1.0")
	// EqualFold takes the Kelvin sign for a K, which has more bytes.
	case len(codings) > 1 || len(codings) == 1 && (len(codings[0]) != len("chunked") || !strings.EqualFold(codings[0], "chunked")):
		return &refusal{http.StatusNotImplemented, "the transfer encoding is not known"}
	case len(codings) == 1:
		delete(c.header, "Transfer-Encoding")
		for _, list := range c.header["Trailer"] {
			for name := range strings.SplitSeq(list, ",") {
				switch textproto.CanonicalMIMEHeaderKey(strings.Trim(name, " \t")) {
				case "Transfer-Encoding", "Trailer", "Content-Length":
					return bad("a field that cannot be in the trailer")
				}
			}
		}
		delete(c.header, "Trailer")
		r.ContentLength, r.TransferEncoding = -1, chunked
		c.body.beginChunked(c)
		r.Body = &c.body
		return nil
	case len(lengths) > 1:
		return bad("more than one Content-Length")
	case len(lengths) == 1:
		// 63 bits, without a sign: ParseUint takes none.
		n, err := strconv.ParseUint(lengths[0], 10, 63)
		if err != nil {
			return bad("malformed Content-Length")
		}
		r.ContentLength = int64(n)
	}
	c.body.begin(c, r.ContentLength)
	r.Body = http.NoBody
	if r.ContentLength > 0 {
		r.Body = &c.body
	}
	return nil
}
