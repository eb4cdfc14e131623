package objectstore_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"testing"
	"time"
)

// signer is a Signature Version 4 of the tests' own, so that the server's is checked
// against another one, and so that tests can leave things out.
type signer struct {
	key, secret, region string
	time                time.Time
	unsigned            map[string]bool // headers to leave out of the signature
}

func newSigner() *signer {
	return &signer{key: testKey, secret: testSecret, region: "eu-test-1", time: time.Now().UTC()}
}

func mac(key []byte, s string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(s))
	return m.Sum(nil)
}

func hash(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func (s *signer) date() string  { return s.time.Format("20060102T150405Z") }
func (s *signer) scope() string { return s.date()[:8] + "/" + s.region + "/s3/aws4_request" }

func (s *signer) signingKey() []byte {
	return mac(mac(mac(mac([]byte("AWS4"+s.secret), s.date()[:8]), s.region), "s3"), "aws4_request")
}

// sign signs a request whose X-Amz-Content-Sha256 is set; it gives the signature.
func (s *signer) sign(r *http.Request) string {
	r.Header.Set("X-Amz-Date", s.date())
	values := map[string]string{"host": r.URL.Host}
	for n, v := range r.Header {
		if low := strings.ToLower(n); !s.unsigned[low] {
			values[low] = strings.Join(v, ",")
		}
	}
	names := make([]string, 0, len(values))
	for n := range values {
		names = append(names, n)
	}
	sort.Strings(names)
	var b strings.Builder
	query := strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")
	fmt.Fprintf(&b, "%s\n%s\n%s\n", r.Method, r.URL.EscapedPath(), query)
	for _, n := range names {
		fmt.Fprintf(&b, "%s:%s\n", n, values[n])
	}
	fmt.Fprintf(&b, "\n%s\n%s", strings.Join(names, ";"), r.Header.Get("X-Amz-Content-Sha256"))
	text := "AWS4-HMAC-SHA256\n" + s.date() + "\n" + s.scope() + "\n" + hash([]byte(b.String()))
	sig := hex.EncodeToString(mac(s.signingKey(), text))
	r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s",
		s.key, s.scope(), strings.Join(names, ";"), sig))
	return sig
}

// request makes a signed request with a hashed body.
func (s *signer) request(method, target string, body []byte, headers ...string) *http.Request {
	r, err := http.NewRequest(method, target, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("X-Amz-Content-Sha256", hash(body))
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	s.sign(r)
	return r
}

// chunked makes a request with signed chunks, and a signed trailer when one is given
// ("name:value"). change may spoil the encoded body.
func (s *signer) chunked(target string, chunks [][]byte, trailer string, change func([]byte) []byte) *http.Request {
	r, err := http.NewRequest(http.MethodPut, target, nil)
	if err != nil {
		panic(err)
	}
	total := 0
	for _, c := range chunks {
		total += len(c)
	}
	r.Header.Set("X-Amz-Decoded-Content-Length", fmt.Sprint(total))
	r.Header.Set("Content-Encoding", "aws-chunked")
	r.Header.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
	if trailer != "" {
		r.Header.Set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
		name, _, _ := strings.Cut(trailer, ":")
		r.Header.Set("X-Amz-Trailer", name)
	}
	prev := s.sign(r)
	var b bytes.Buffer
	for _, c := range append(chunks, nil) {
		prev = hex.EncodeToString(mac(s.signingKey(), strings.Join([]string{
			"AWS4-HMAC-SHA256-PAYLOAD", s.date(), s.scope(), prev, hash(nil), hash(c)}, "\n")))
		fmt.Fprintf(&b, "%x;chunk-signature=%s\r\n", len(c), prev)
		if b.Write(c); len(c) > 0 {
			b.WriteString("\r\n")
		}
	}
	if trailer != "" {
		sig := hex.EncodeToString(mac(s.signingKey(), strings.Join([]string{
			"AWS4-HMAC-SHA256-TRAILER", s.date(), s.scope(), prev, hash([]byte(trailer + "\n"))}, "\n")))
		fmt.Fprintf(&b, "%s\r\nx-amz-trailer-signature:%s\r\n", trailer, sig)
	}
	b.WriteString("\r\n")
	body := b.Bytes()
	if change != nil {
		body = change(body)
	}
	n, err := http.NewRequest(http.MethodPut, target, bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	n.Header = r.Header
	return n
}

// presign puts the signature into the query.
func (s *signer) presign(method, target string, expires time.Duration) string {
	u, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	q := u.Query()
	q.Set("X-Amz-Algorithm", "AWS4-HMAC-SHA256")
	q.Set("X-Amz-Credential", s.key+"/"+s.scope())
	q.Set("X-Amz-Date", s.date())
	q.Set("X-Amz-Expires", fmt.Sprint(int(expires.Seconds())))
	q.Set("X-Amz-SignedHeaders", "host")
	query := strings.ReplaceAll(q.Encode(), "+", "%20")
	text := fmt.Sprintf("%s\n%s\n%s\nhost:%s\n\nhost\nUNSIGNED-PAYLOAD", method, u.EscapedPath(), query, u.Host)
	sig := hex.EncodeToString(mac(s.signingKey(), "AWS4-HMAC-SHA256\n"+s.date()+"\n"+s.scope()+"\n"+hash([]byte(text))))
	u.RawQuery = query + "&X-Amz-Signature=" + sig
	return u.String()
}

// signedByDate signs a request of request again with a Date header in the layout in
// place of X-Amz-Date.
func signedByDate(r *http.Request, layout string) *http.Request {
	s := newSigner()
	r.Header.Del("X-Amz-Date")
	r.Header.Set("Date", s.time.Format(layout))
	text := fmt.Sprintf("%s\n%s\n\ndate:%s\nhost:%s\n\ndate;host\n%s", r.Method, r.URL.EscapedPath(), r.Header.Get("Date"), r.URL.Host, r.Header.Get("X-Amz-Content-Sha256"))
	// The hash of the body is an x-amz- header, so it has to be signed.
	text = strings.Replace(text, "\n\ndate;host\n", "\nx-amz-content-sha256:"+r.Header.Get("X-Amz-Content-Sha256")+"\n\ndate;host;x-amz-content-sha256\n", 1)
	sig := hex.EncodeToString(mac(s.signingKey(), "AWS4-HMAC-SHA256\n"+s.date()+"\n"+s.scope()+"\n"+hash([]byte(text))))
	r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=date;host;x-amz-content-sha256, Signature=%s", s.key, s.scope(), sig))
	return r
}

// rawHeaders gives the head of the answer to a HEAD request as it is on the wire.
func rawHeaders(t testing.TB, s *server, target string) string {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := newSigner().request("HEAD", target, nil)
	r.Close = true
	if err := r.Write(conn); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func must(r *http.Request, err error) *http.Request {
	if err != nil {
		panic(err)
	}
	return r
}
