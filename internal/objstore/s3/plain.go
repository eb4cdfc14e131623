package s3

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"hash"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"golang.org/x/net/http/httpguts"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// plainRequest is a request for one object, without a query. Those are the requests of every batch,
// so where our own transport sends them they are written and signed into one buffer, without the
// types of net/http.
type plainRequest struct {
	method, key string
	// sum is the SHA-256 of the body, which the signature covers; zero is that of an empty body.
	sum identity.Digest
	// checksum is the one that the store verifies and keeps; zero sends none. With withChecksum the store
	// returns the one that it keeps.
	checksum     identity.Digest
	withChecksum bool
	// condition is "If-Match" or "If-None-Match" with its value, or empty.
	condition, conditionValue string
	contentType, tagging      string
	byteRange                 string
	body                      []byte
	// limit of the object that a GET reads, bytes.
	limit int64
}

// header is the header of the request for net/http, without signature.
func (r *plainRequest) header() http.Header {
	h := emptyHeader(6)
	for _, f := range [...]struct{ name, value string }{
		{r.condition, r.conditionValue}, {"Content-Type", r.contentType}, {"X-Amz-Tagging", r.tagging}, {"Range", r.byteRange},
	} {
		if f.value != "" {
			h[f.name] = []string{f.value}
		}
	}
	if r.withChecksum {
		// Without this header the store does not return the checksum that it keeps.
		h["X-Amz-Checksum-Mode"] = []string{"ENABLED"}
	}
	if !r.sum.IsZero() {
		h["X-Amz-Content-Sha256"] = []string{r.sum.String()}
	}
	if !r.checksum.IsZero() {
		h["X-Amz-Checksum-Sha256"] = []string{r.checksumText()}
	}
	return h
}

func (r *plainRequest) checksumText() string {
	return base64.StdEncoding.EncodeToString(r.checksum[:])
}

// ask sends a request once, and reads its answer. The error is one of the transport: then nothing is
// known about whether the request was executed.
func (s *Store) ask(ctx context.Context, r *plainRequest) (reply, error) {
	if s.plain != nil && len(r.body) <= sendAtOnce {
		out := buffers.Get().(*buffer)
		defer buffers.Put(out)
		creds, err := s.creds.Retrieve(ctx)
		if err != nil {
			return reply{}, fmt.Errorf("credentials: %w", err)
		}
		if out.b = s.plain.compose(out.b[:0], r, &creds, s.now()); len(out.b) > 0 {
			return s.plain.direct.ask(ctx, place{s.base.Scheme, s.base.Host}, r, out.b)
		}
	}
	resp, err := s.send(ctx, request{method: r.method, key: r.key, header: r.header(), body: r.body})
	if err != nil {
		return reply{}, err
	}
	return replyOf(resp, r), nil
}

// plainSender writes plain requests for one bucket.
type plainSender struct {
	direct *direct
	signer *signer
	base   *url.URL
	path   string // of the bucket with the prefix of all keys, escaped
	stamp  atomic.Pointer[stamp]
}

// stamp is the time of signatures, which has seconds.
type stamp struct {
	unix int64
	text string
}

// newPlainSender gives nil where a rule of the SDK applies to every request: then net/http's types and
// the SDK are used.
func newPlainSender(s *Store) *plainSender {
	d, ok := s.rt.(*direct)
	host := s.base.Host
	if !ok || !signsHost(host) || !httpguts.ValidHostHeader(host) || s.base.RawQuery != "" || s.base.Opaque != "" {
		return nil
	}
	path := appendEscaped([]byte(s.base.EscapedPath()+"/"), s.cfg.Prefix)
	return &plainSender{direct: d, signer: s.signer, base: &s.base, path: string(path)}
}

// composing has the parts of a request while it is written: its canonical form, which is signed, and the
// names of the signed headers.
type composing struct{ canonical, names []byte }

var composings = sync.Pool{New: func() any { return &composing{make([]byte, 0, 1024), make([]byte, 0, 256)} }}

// compose appends the request with its signature and its body. It appends nothing where a value needs one
// of the SDK's rules, or can't be sent.
func (p *plainSender) compose(b []byte, r *plainRequest, creds *aws.Credentials, now time.Time) []byte {
	for _, v := range [...]string{r.conditionValue, r.contentType, r.tagging, r.byteRange, creds.SessionToken, creds.AccessKeyID} {
		if !isPlain(v) || !httpguts.ValidHeaderFieldValue(v) {
			return b
		}
	}
	w := composings.Get().(*composing)
	defer composings.Put(w)
	stamp := p.timeOf(now)

	b = append(append(b, r.method...), ' ')
	from := len(b)
	b = appendEscaped(append(b, p.path...), r.key)
	w.canonical = append(append(append(append(w.canonical[:0], r.method...), '\n'), b[from:]...), "\n\n"...)
	w.names = w.names[:0]
	b = append(append(append(b, " HTTP/1.1\r\nHost: "...), p.base.Host...), "\r\nUser-Agent: lightmetrics\r\n"...)
	// In the order of their names, as they are signed.
	if n := len(r.body); n > 0 {
		var digits [20]byte
		b = addField(b, w, "Content-Length: ", "content-length", strconv.AppendInt(digits[:0], int64(n), 10))
	} else if r.method == http.MethodPut {
		b = append(b, "Content-Length: 0\r\n"...)
	}
	if r.contentType != "" {
		b = addField(b, w, "Content-Type: ", "content-type", r.contentType)
	}
	w.sign("host", p.base.Host)
	switch r.condition {
	case "":
	case "If-Match":
		b = addField(b, w, "If-Match: ", "if-match", r.conditionValue)
	default:
		b = addField(b, w, "If-None-Match: ", "if-none-match", r.conditionValue)
	}
	if r.byteRange != "" {
		b = addField(b, w, "Range: ", "range", r.byteRange)
	}
	if r.withChecksum {
		b = addField(b, w, "X-Amz-Checksum-Mode: ", "x-amz-checksum-mode", "ENABLED")
	}
	if !r.checksum.IsZero() {
		var text [44]byte
		base64.StdEncoding.Encode(text[:], r.checksum[:])
		b = addField(b, w, "X-Amz-Checksum-Sha256: ", "x-amz-checksum-sha256", text[:])
	}
	var payload [64]byte
	if r.sum.IsZero() {
		copy(payload[:], emptyPayload)
	} else {
		hex.Encode(payload[:], r.sum[:])
	}
	b = addField(b, w, "X-Amz-Content-Sha256: ", "x-amz-content-sha256", payload[:])
	b = addField(b, w, "X-Amz-Date: ", "x-amz-date", stamp)
	if creds.SessionToken != "" {
		b = addField(b, w, "X-Amz-Security-Token: ", "x-amz-security-token", creds.SessionToken)
	}
	if r.tagging != "" {
		b = addField(b, w, "X-Amz-Tagging: ", "x-amz-tagging", r.tagging)
	}
	w.canonical = append(append(append(append(w.canonical, '\n'), w.names...), '\n'), payload[:]...)
	k := p.signer.keyOf(*creds, stamp[:8])
	b = append(append(append(b, "Authorization: "+signAlgorithm+" Credential="...), k.id...), '/')
	b = append(append(append(b, k.scope...), ", SignedHeaders="...), w.names...)
	b = k.appendSignature(append(b, ", Signature="...), &w.canonical, stamp)
	return append(append(b, "\r\n\r\n"...), r.body...)
}

// addField appends a header field, and signs it.
func addField[T string | []byte](b []byte, w *composing, prefix, name string, value T) []byte {
	w.canonical = append(append(append(append(w.canonical, name...), ':'), value...), '\n')
	w.addName(name)
	return append(append(append(b, prefix...), value...), "\r\n"...)
}

// sign signs a header field that is sent elsewhere.
func (w *composing) sign(name, value string) {
	w.canonical = append(append(append(append(w.canonical, name...), ':'), value...), '\n')
	w.addName(name)
}

func (w *composing) addName(name string) {
	if len(w.names) > 0 {
		w.names = append(w.names, ';')
	}
	w.names = append(w.names, name...)
}

// appendSignature appends the signature of a canonical request, whose memory it uses.
func (k *signingKey) appendSignature(b []byte, canonical *[]byte, stamp string) []byte {
	sum := sha256.Sum256(*canonical)
	c := append(append(append((*canonical)[:0], signAlgorithm+"\n"...), stamp...), '\n')
	c = hex.AppendEncode(append(append(c, k.scope...), '\n'), sum[:])
	*canonical = c
	m, ok := k.macs.Get().(hash.Hash)
	if !ok {
		m = hmac.New(sha256.New, k.key)
	}
	m.Reset()
	m.Write(c)
	// Into the same memory: a local array would be one allocation for each signature.
	c = m.Sum(c[:0])
	k.macs.Put(m)
	return hex.AppendEncode(b, c)
}

// timeOf is the time in the form of signatures.
func (p *plainSender) timeOf(now time.Time) string {
	unix := now.Unix()
	if s := p.stamp.Load(); s != nil && s.unix == unix {
		return s.text
	}
	s := &stamp{unix, now.UTC().Format(signTime)}
	p.stamp.Store(s)
	return s.text
}

// appendEscaped appends a path as S3 wants it: everything but unreserved characters and slashes is escaped.
func appendEscaped(b []byte, path string) []byte {
	const digits = "0123456789ABCDEF"
	for i := range len(path) {
		if c := path[i]; unescaped[c] {
			b = append(b, c)
		} else {
			b = append(b, '%', digits[c>>4], digits[c&15])
		}
	}
	return b
}

var unescaped = func() (t [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~/") {
		t[c] = true
	}
	return t
}()

// signsHost reports whether a host is signed as it is: the SDK removes the default port.
func signsHost(host string) bool {
	return host != "" && isPlain(host) && !strings.HasSuffix(host, ":80") && !strings.HasSuffix(host, ":443")
}
