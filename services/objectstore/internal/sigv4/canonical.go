package sigv4

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const upperHex = "0123456789ABCDEF"

// appendEncoded percent-encodes everything but unreserved characters, and '/' when keepSlash.
func appendEncoded(b []byte, s string, keepSlash bool) []byte {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '-', c == '_', c == '.', c == '~', c == '/' && keepSlash:
			b = append(b, c)
		default:
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return b
}

type param struct{ name, value string }

// parseQuery splits a raw query strictly.
func parseQuery(raw string) ([]param, error) {
	if raw == "" {
		return nil, nil
	}
	var ps []param
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		n, v, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(n)
		if err != nil {
			return nil, err
		}
		value, err := url.QueryUnescape(v)
		if err != nil {
			return nil, err
		}
		ps = append(ps, param{name, value})
	}
	return ps, nil
}

// appendQuery writes the canonical query without X-Amz-Signature.
func appendQuery(b []byte, ps []param) []byte {
	enc := make([]param, 0, len(ps))
	for _, p := range ps {
		if p.name != "X-Amz-Signature" {
			enc = append(enc, param{string(appendEncoded(nil, p.name, false)), string(appendEncoded(nil, p.value, false))})
		}
	}
	// Sorted by the encoded names, as the specification says.
	slices.SortFunc(enc, func(x, y param) int {
		if c := strings.Compare(x.name, y.name); c != 0 {
			return c
		}
		return strings.Compare(x.value, y.value)
	})
	for i, p := range enc {
		if i > 0 {
			b = append(b, '&')
		}
		b = append(append(append(b, p.name...), '='), p.value...)
	}
	return b
}

// canonicalNames has the keys in http.Header of the headers that clients sign in nearly every
// request: http.CanonicalHeaderKey makes a new string of each.
var canonicalNames = func() map[string]string {
	m := map[string]string{}
	for _, name := range []string{
		"x-amz-content-sha256", "x-amz-date", "x-amz-checksum-sha256", "x-amz-checksum-crc32", "x-amz-checksum-mode",
		"x-amz-sdk-checksum-algorithm", "x-amz-user-agent", "x-amz-tagging", "x-amz-decoded-content-length", "x-amz-trailer",
		"amz-sdk-invocation-id", "amz-sdk-request", "accept-encoding", "content-type", "content-md5",
		"if-match", "if-none-match", "range",
	} {
		m[name] = http.CanonicalHeaderKey(name)
	}
	return m
}()

// isLowerOf reports whether low is name in lower case.
func isLowerOf(low, name string) bool {
	if len(low) != len(name) {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != low[i] {
			return false
		}
	}
	return true
}

// headerValue gives a signed header's canonical value; false when it is absent.
func headerValue(r *http.Request, name string) (string, bool) {
	switch name {
	case "host":
		return r.Host, true
	case "content-length":
		if r.ContentLength < 0 {
			return "", false
		}
		return strconv.FormatInt(r.ContentLength, 10), true
	case "transfer-encoding":
		return strings.Join(r.TransferEncoding, ","), len(r.TransferEncoding) > 0
	}
	canonical, ok := canonicalNames[name]
	if !ok {
		canonical = http.CanonicalHeaderKey(name)
	}
	vs := r.Header[canonical]
	switch len(vs) {
	case 0:
		return "", false
	case 1:
		return trimSpaces(vs[0]), true
	}
	t := make([]string, len(vs))
	for i, v := range vs {
		t[i] = trimSpaces(v)
	}
	return strings.Join(t, ","), true
}

// trimSpaces drops outer spaces and folds runs of spaces.
func trimSpaces(s string) string {
	s = strings.TrimSpace(s)
	if !strings.Contains(s, "  ") {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != ' ' || s[i-1] != ' ' {
			b = append(b, s[i])
		}
	}
	return string(b)
}

// appendPath encodes the decoded path once, as S3 does.
func appendPath(b []byte, r *http.Request) []byte {
	p := r.URL.Path
	if p == "" {
		p = "/"
	}
	return appendEncoded(b, p, true)
}

// mustBeSigned reports whether the signature must cover a header. Otherwise somebody between client
// and store could add one that changes the outcome, such as a condition.
func mustBeSigned(name string) bool {
	switch name {
	case "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since", "If-Range":
		return true
	}
	return len(name) > 6 && strings.EqualFold(name[:6], "x-amz-")
}
