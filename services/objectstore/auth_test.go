package objectstore_test

import (
	"bytes"
	"encoding/base64"
	"encoding/xml"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// send gives status, S3 error code and body of an answer.
func send(t testing.TB, r *http.Request) (int, string, []byte) {
	t.Helper()
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var e struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}
	if resp.StatusCode >= 400 && r.Method != http.MethodHead {
		if err := xml.Unmarshal(b, &e); err != nil {
			t.Errorf("the error is no XML: %q", b)
		}
	}
	return resp.StatusCode, e.Code, b
}

func TestSignatures(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	base := s.url() + "/" + bucket + "/sig/"
	body := random(20000)
	crc := make([]byte, 4)
	sum := crc32.ChecksumIEEE(body)
	crc[0], crc[1], crc[2], crc[3] = byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)
	trailer := "x-amz-checksum-crc32:" + base64.StdEncoding.EncodeToString(crc)
	chunks := [][]byte{body[:8192], body[8192:16384], body[16384:]}
	spoil := func(old, replacement string) func([]byte) []byte {
		return func(b []byte) []byte {
			if !bytes.Contains(b, []byte(old)) {
				t.Errorf("no %q to spoil", old)
			}
			return bytes.Replace(b, []byte(old), []byte(replacement), 1)
		}
	}
	at := func(d time.Duration) *signer { g := newSigner(); g.time = g.time.Add(d); return g }
	without := func(names ...string) *signer {
		g := newSigner()
		g.unsigned = map[string]bool{}
		for _, n := range names {
			g.unsigned[n] = true
		}
		return g
	}
	cases := []struct {
		name   string
		req    *http.Request
		status int
		code   string
	}{
		{"hashed", newSigner().request("PUT", base+"a", body), 200, ""},
		{"odd path and query", newSigner().request("GET", s.url()+"/"+bucket+"?list-type=2&prefix=a%20%2Bb%2F%C3%BC&max-keys=3", nil), 200, ""},
		{"chunked", newSigner().chunked(base+"b", chunks, "", nil), 200, ""},
		{"chunked with trailer", newSigner().chunked(base+"c", chunks, trailer, nil), 200, ""},
		{"skew allowed", at(-14*time.Minute).request("PUT", base+"d", body), 200, ""},
		{"too old", at(-16*time.Minute).request("PUT", base+"x", body), 403, "RequestTimeTooSkewed"},
		{"too new", at(16*time.Minute).request("PUT", base+"x", body), 403, "RequestTimeTooSkewed"},
		{"unsigned condition", without("if-none-match").request("PUT", base+"x", body, "If-None-Match", "*"), 403, "AccessDenied"},
		{"unsigned if-match", without("if-match").request("PUT", base+"x", body, "If-Match", `"a"`), 403, "AccessDenied"},
		{"unsigned x-amz", without("x-amz-meta-a").request("PUT", base+"x", body, "X-Amz-Meta-A", "b"), 403, "AccessDenied"},
		{"chunk changed", newSigner().chunked(base+"x", chunks, "", func(b []byte) []byte { b[3000] ^= 1; return b }), 403, "SignatureDoesNotMatch"},
		{"chunk of another size", newSigner().chunked(base+"x", chunks, "", spoil("2000;", "1fff;")), 400, "IncompleteBody"},
		{"chunk dropped", newSigner().chunked(base+"x", chunks, "", func(b []byte) []byte { return b[bytes.Index(b[10:], []byte("2000;"))+10:] }), 403, "SignatureDoesNotMatch"},
		{"last chunk missing", newSigner().chunked(base+"x", chunks, "", func(b []byte) []byte { return b[:bytes.LastIndex(b, []byte("0;chunk"))] }), 400, "IncompleteBody"},
		{"data behind the end", newSigner().chunked(base+"x", chunks, "", func(b []byte) []byte { return append(b, "more"...) }), 400, "IncompleteBody"},
		{"trailer changed", newSigner().chunked(base+"x", chunks, trailer, spoil(trailer, "x-amz-checksum-crc32:AAAAAA==")), 403, "SignatureDoesNotMatch"},
		{"trailer wrong but signed", newSigner().chunked(base+"x", chunks, "x-amz-checksum-crc32:AAAAAA==", nil), 400, "BadDigest"},
		{"trailer signature missing", newSigner().chunked(base+"x", chunks, trailer, func(b []byte) []byte {
			return append(b[:bytes.Index(b, []byte("x-amz-trailer-signature"))], "\r\n"...)
		}), 403, "SignatureDoesNotMatch"},
		{"no authorization", func() *http.Request { r, _ := http.NewRequest("GET", base+"a", nil); return r }(), 403, "AccessDenied"},
	}
	wrong := newSigner()
	wrong.secret = "another-secret"
	unknown := newSigner()
	unknown.key = "NOBODY"
	changed := newSigner().request("PUT", base+"x", body)
	changed.Body = io.NopCloser(bytes.NewReader(append([]byte{1}, body[1:]...)))
	moved := newSigner().request("DELETE", base+"y", nil)
	moved.URL.Path = "/" + bucket + "/sig/a"
	cases = append(cases, []struct {
		name   string
		req    *http.Request
		status int
		code   string
	}{
		{"wrong secret", wrong.request("PUT", base+"x", body), 403, "SignatureDoesNotMatch"},
		{"unknown key", unknown.request("PUT", base+"x", body), 403, "InvalidAccessKeyId"},
		{"body changed", changed, 400, "XAmzContentSHA256Mismatch"},
		{"path changed", moved, 403, "SignatureDoesNotMatch"},
	}...)
	for _, c := range cases {
		if status, code, b := send(t, c.req); status != c.status || code != c.code {
			t.Errorf("%s: got %d %s, want %d %s: %s", c.name, status, code, c.status, c.code, b)
		}
	}
	for _, k := range []string{"a", "b", "c", "d"} {
		if got := get(t, s.client(), "sig/"+k); !bytes.Equal(got, body) {
			t.Errorf("%s: other bytes came back", k)
		}
	}
	if status, _, _ := send(t, newSigner().request("GET", base+"x", nil)); status != 404 {
		t.Errorf("a refused body was stored: %d", status)
	}
}

func TestPresigned(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	target := s.url() + "/" + bucket + "/pre/a%20b"
	do := func(method, u string, body string, headers ...string) (int, string, []byte) {
		r, err := http.NewRequest(method, u, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		return send(t, r)
	}
	g := newSigner()
	if st, c, _ := do("PUT", g.presign("PUT", target, time.Minute), "hello"); st != 200 {
		t.Fatalf("put: %d %s", st, c)
	}
	if st, _, b := do("GET", g.presign("GET", target, time.Minute), ""); st != 200 || string(b) != "hello" {
		t.Errorf("get: %d %q", st, b)
	}
	if st, c, _ := do("DELETE", g.presign("GET", target, time.Minute), ""); st != 403 || c != "SignatureDoesNotMatch" {
		t.Errorf("another method: %d %s", st, c)
	}
	if st, c, _ := do("PUT", g.presign("PUT", target, time.Minute), "x", "If-None-Match", "*"); st != 403 || c != "AccessDenied" {
		t.Errorf("an unsigned condition: %d %s", st, c)
	}
	g.time = g.time.Add(-time.Hour)
	if st, c, _ := do("GET", g.presign("GET", target, time.Minute), ""); st != 403 || c != "AccessDenied" {
		t.Errorf("expired: %d %s", st, c)
	}
	if st, c, _ := do("GET", g.presign("GET", target, 8*24*time.Hour), ""); st != 400 {
		t.Errorf("expires in 8 days: %d %s", st, c)
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	g := newSigner()
	base := s.url() + "/" + bucket + "/"
	for _, c := range []struct {
		name, method, target string
		headers              []string
		status               int
		code                 string
	}{
		{"key too long", "PUT", base + strings.Repeat("k", 1025), nil, 400, "KeyTooLongError"},
		{"key with NUL", "PUT", base + "a%00b", nil, 400, "InvalidURI"},
		{"key not UTF-8", "PUT", base + "a%FFb", nil, 400, "InvalidURI"},
		{"bucket name", "PUT", s.url() + "/No_Bucket/", nil, 400, "InvalidBucketName"},
		{"no bucket", "PUT", s.url() + "/nothing-here/k", nil, 404, "NoSuchBucket"},
		{"acl must not write", "PUT", base + "k?acl", nil, 404, "NoSuchKey"},
		{"version", "GET", base + "k?versionId=1", nil, 404, "NoSuchVersion"},
		{"no version", "GET", base + "k?versionId=", nil, 400, "InvalidArgument"},
		{"encryption", "PUT", base + "k", []string{"X-Amz-Server-Side-Encryption", "AES256"}, 501, "NotImplemented"},
		{"POST that is no form", "POST", s.url() + "/" + bucket, nil, 412, "PreconditionFailed"},
		{"if-none-match with an ETag", "PUT", base + "k", []string{"If-None-Match", `"a"`}, 501, "NotImplemented"},
		{"both conditions", "PUT", base + "k", []string{"If-None-Match", "*", "If-Match", `"a"`}, 501, "NotImplemented"},
		{"MD5 malformed", "PUT", base + "k", []string{"Content-Md5", "abc"}, 400, "InvalidDigest"},
		{"MD5 wrong", "PUT", base + "k", []string{"Content-Md5", "AAAAAAAAAAAAAAAAAAAAAA=="}, 400, "BadDigest"},
		{"checksum unknown", "PUT", base + "k", []string{"X-Amz-Checksum-Foo", "AAAA"}, 400, "InvalidRequest"},
		{"two checksums", "PUT", base + "k", []string{"X-Amz-Checksum-Crc32", "AAAAAA==", "X-Amz-Checksum-Crc32c", "AAAAAA=="}, 400, "InvalidRequest"},
		{"too much metadata", "PUT", base + "k", []string{"X-Amz-Meta-A", strings.Repeat("x", 3000)}, 400, "MetadataTooLarge"},
		{"too many tags", "PUT", base + "k", []string{"X-Amz-Tagging", "a=1&b=1&c=1&d=1&e=1&f=1&g=1&h=1&i=1&j=1&k=1"}, 400, "BadRequest"},
		{"method", "PATCH", base + "k", nil, 405, "MethodNotAllowed"},
	} {
		if st, code, b := send(t, g.request(c.method, c.target, []byte("x"), c.headers...)); st != c.status || code != c.code {
			t.Errorf("%s: got %d %s, want %d %s: %s", c.name, st, code, c.status, c.code, b)
		}
	}
	if st, _, b := send(t, g.request("GET", base+"?list-type=2", nil)); st != 200 || bytes.Contains(b, []byte("<Key>")) {
		t.Errorf("a refused request left something: %d %s", st, b)
	}
}
