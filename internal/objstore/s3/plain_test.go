package s3

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go/encoding/httpbinding"
	"golang.org/x/net/http/httpguts"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// FuzzPlainRequests: a plain request is, byte by byte, one request: the one that net/http and the SDK's signer would
// send, or none.
func FuzzPlainRequests(f *testing.F) {
	f.Add("PUT", "accepted/v1/agent=6869/boot=00/1-2.json", "", "If-None-Match", "*", "application/json", "", "", "", "AK", "secret", []byte("body"), true, int64(1780000000))
	f.Add("GET", "a b/ü+%/~", "p q/", "", "", "", "", "bytes=0-1", "token", "AK", "s", []byte(nil), false, int64(1780000001))
	f.Add("PUT", "k", "p/", "If-Match", "\"e\"", " two  spaces ", "a%20b=c", "", "", "AK2", "s", []byte(nil), true, int64(0))
	f.Add("PUT", "k", "", "If-Match", "\"e\"\r\n\r\nDELETE / HTTP/1.1", "", "", "", "", "AK", "s", []byte(nil), true, int64(0))
	f.Add("HEAD", "k", "", "", "", "", "", "", "t\nx", "AK", "s", []byte(nil), false, int64(1))
	f.Add("DELETE", "k?a=b#c", "", "", "", "", "", "", "", "AK", "s", []byte(nil), false, int64(2))
	g := newSigner("eu-test-1") // kept, so that a cached key or time of other requests would show
	senders := map[string]*plainSender{}
	f.Fuzz(func(t *testing.T, method, key, prefix, condition, value, contentType, tagging, byteRange, token, id, secret string, body []byte, checksum bool, unix int64) {
		if unix < 0 || unix > 1<<33 || !map[string]bool{"PUT": true, "GET": true, "HEAD": true, "DELETE": true}[method] || method != "PUT" && len(body) > 0 {
			return
		}
		if condition != "If-Match" && condition != "If-None-Match" || value == "" {
			condition, value = "", ""
		}
		p := senders[prefix]
		if p == nil {
			s := &Store{cfg: Config{Prefix: prefix}, base: url.URL{Scheme: "http", Host: "127.0.0.1:9000", Path: "/bucket"}, signer: g, rt: &direct{}}
			if p = newPlainSender(s); p == nil {
				t.Fatal("no sender")
			}
			senders[prefix] = p
		}
		r := &plainRequest{
			method: method, key: key, condition: condition, conditionValue: value, contentType: contentType, tagging: tagging, byteRange: byteRange,
			withChecksum: !checksum, body: body,
		}
		if method == "PUT" {
			r.sum = identity.Sum(body)
			if checksum {
				r.checksum = r.sum
			}
		}
		creds, now := aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: token}, time.Unix(unix, 0)
		out := p.compose(nil, r, &creds, now)
		if len(out) == 0 {
			for _, v := range []string{value, contentType, tagging, byteRange, token, id} {
				if !httpguts.ValidHeaderFieldValue(v) || !isPlain(v) {
					return
				}
			}
			t.Fatalf("%+v is left to the SDK", r)
		}
		in := bufio.NewReader(bytes.NewReader(out))
		got, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("%q: %v", out, err)
		}
		sent, err := io.ReadAll(got.Body)
		if err != nil || !bytes.Equal(sent, body) || in.Buffered() > 0 {
			t.Fatalf("%q: body %q and %d bytes more, %v", out, sent, in.Buffered(), err)
		}
		u := url.URL{Scheme: "http", Host: "127.0.0.1:9000", Path: "/bucket/" + prefix + key, RawPath: "/bucket/" + httpbinding.EscapePath(prefix+key, false)}
		want := &http.Request{Method: method, URL: &u, Host: u.Host, Header: r.header(), ContentLength: int64(len(body))}
		sdk := newSigner(g.region).sdk
		if err := sdk.SignHTTP(t.Context(), creds, want, want.Header["X-Amz-Content-Sha256"][0], "s3", g.region, now); err != nil {
			t.Fatal(err)
		}
		want.Header["User-Agent"] = userAgent
		got.Header.Del("Content-Length")
		if got.Method != method || got.RequestURI != u.RawPath || got.Host != u.Host || got.ContentLength != int64(len(body)) ||
			!maps.EqualFunc(got.Header, want.Header, func(a, b []string) bool { return strings.Join(a, "\x00") == strings.Join(b, "\x00") }) {
			t.Fatalf("%q\n%v\n%v", out, got.Header, want.Header)
		}
	})
}

// FuzzReplies: what is parsed here, net/http parses to the same.
func FuzzReplies(f *testing.F) {
	for _, s := range []string{
		created,
		"HTTP/1.1 200 OK\r\nEtag: \"e\"\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nx-amz-checksum-sha256:  a= \r\nContent-Length: 3\r\nConnection: Keep-Alive\r\n\r\nabcHTTP",
		"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nETag: a\r\nETag: b\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nETag:\r\nETag: b\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA : b\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", "HTTP/1.1 200 OK\nContent-Length: 1\n\r\n\r\n", "HTTP/1.1 200 \r\nContent-Length: 1\r\n\r\n",
		"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, want reply
		n := p.parseReply(b)
		if n == 0 {
			return
		}
		in := bytes.NewReader(b)
		buffered := bufio.NewReader(in)
		resp, err := http.ReadResponse(buffered, &http.Request{Method: "GET"})
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		want.head(resp)
		if rest := len(b) - n; rest != in.Len()+buffered.Buffered() {
			t.Fatalf("%q: %d bytes follow the head, not %d", b, in.Len()+buffered.Buffered(), rest)
		}
		if p.status != want.status || p.length != want.length || p.etag != want.etag || p.date != want.date || p.modified != want.modified ||
			p.checksum != want.checksum || p.replication != want.replication || p.contentRange != want.contentRange || resp.Close {
			t.Fatalf("%q: %+v, by net/http %+v", b, p, want)
		}
	})
}

// TestUsualRepliesAreParsedHere: the answers of every batch are not left to net/http.
func TestUsualRepliesAreParsedHere(t *testing.T) {
	var p reply
	for _, s := range []string{
		created,
		"HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\nX-Amz-Request-Id: 1\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: 200\r\n\r\n",
		"HTTP/1.1 200 OK\r\nServer: nginx\r\nConnection: keep-alive\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n",
	} {
		if p.parseReply([]byte(s)) != len(s) {
			t.Errorf("%q is left to net/http", s)
		}
	}
	if last := p.etag; last != `"e"` {
		t.Errorf("ETag %q", last)
	}
}

// sentBy is a transport that keeps requests and answers none.
type sentBy struct{ r *http.Request }

func (s *sentBy) RoundTrip(r *http.Request) (*http.Response, error) {
	s.r = r
	return nil, errors.New("kept")
}

// TestPlainRequestsOfEveryPlace: wherever the bucket is, in the host or below a path, a plain request is the one that is
// sent without the plain path.
func TestPlainRequestsOfEveryPlace(t *testing.T) {
	at := time.Unix(1780000000, 0)
	for _, c := range []struct {
		endpoint, prefix string
		inPath, plain    bool
	}{
		{"http://s3.example.org", "", false, true},
		{"https://S3.example.org:9000", "a b/+/", false, true},
		{"http://[::1]:9000", "p/", true, true},
		{"http://127.0.0.1:9000/below/a%20b/", "", true, true},
		{"http://127.0.0.1:9000/ü/", "é/", true, true},
		{"https://s3.example.org:443", "", true, false},
		{"http://s3.example.org:80", "", false, false},
		{"", "", false, true},
	} {
		cfg := testConfig(c.endpoint)
		cfg.PathStyle, cfg.Prefix = c.inPath, c.prefix
		s, err := New(t.Context(), cfg, Options{Now: func() time.Time { return at }})
		must(t, err)
		if (s.plain != nil) != c.plain {
			t.Errorf("%q: plain path %v", c.endpoint, s.plain != nil)
		}
		if s.plain == nil {
			continue
		}
		r := newPut("k=1/ä b", []byte("body"), objstore.PutOptions{ContentType: "a/b", Tags: map[string]string{"a b": "c+d"}}, "If-None-Match", "*")
		creds, err := s.creds.Retrieve(t.Context())
		must(t, err)
		got, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(s.plain.compose(nil, r, &creds, at))))
		must(t, err)
		kept := &sentBy{}
		s.rt, s.plain = kept, nil
		_, _ = s.ask(t.Context(), r)
		want := kept.r
		if got.Host != want.Host || got.RequestURI != want.URL.RequestURI() || got.Header.Get("Authorization") != want.Header.Get("Authorization") {
			t.Errorf("%q: %s %s %s\nwant %s %s %s", c.endpoint, got.Host, got.RequestURI, got.Header.Get("Authorization"), want.Host, want.URL.RequestURI(), want.Header.Get("Authorization"))
		}
	}
}
