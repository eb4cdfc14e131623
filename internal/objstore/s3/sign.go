package s3

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// signer signs requests of net/http with Signature Version 4. Those which have no query and plain headers it
// signs itself, with the bytes of the SDK's signer and a fraction of its work; the SDK signs all others. It keeps
// the key that plain requests are signed with, too.
type signer struct {
	sdk    *v4.Signer
	region string
	key    atomic.Pointer[signingKey] // the last one
}

func newSigner(region string) *signer {
	return &signer{sdk: v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }), region: region}
}

const (
	signAlgorithm = "AWS4-HMAC-SHA256"
	signTime      = "20060102T150405Z"
)

// signingKey signs for one credential on one day.
type signingKey struct {
	id, secret, day string
	scope           string
	key             []byte
	macs            sync.Pool // HMACs that have hashed the key already
}

func (g *signer) keyOf(c aws.Credentials, day string) *signingKey {
	if k := g.key.Load(); k != nil && k.id == c.AccessKeyID && k.secret == c.SecretAccessKey && k.day == day {
		return k
	}
	mac := func(key []byte, s string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(s))
		return m.Sum(nil)
	}
	day = strings.Clone(day)
	k := &signingKey{id: c.AccessKeyID, secret: c.SecretAccessKey, day: day, scope: day + "/" + g.region + "/s3/aws4_request"}
	k.key = mac(mac(mac(mac([]byte("AWS4"+c.SecretAccessKey), day), g.region), "s3"), "aws4_request")
	g.key.Store(k)
	return k
}

// signedHeader is a header as it is signed: its name in lower case, and its value.
type signedHeader struct{ name, value string }

// sign adds X-Amz-Date, X-Amz-Security-Token and Authorization to the header of r, which has
// X-Amz-Content-Sha256.
func (g *signer) sign(ctx context.Context, c aws.Credentials, r *http.Request, now time.Time) error {
	payload := r.Header["X-Amz-Content-Sha256"][0]
	if !signsItself(r) || !isPlain(c.SessionToken) {
		return g.sdk.SignHTTP(ctx, c, r, payload, "s3", g.region, now)
	}
	stamp := now.UTC().Format(signTime)
	r.Header["X-Amz-Date"] = []string{stamp}
	if c.SessionToken != "" {
		r.Header["X-Amz-Security-Token"] = []string{c.SessionToken}
	}
	var room [12]signedHeader
	signed := append(room[:0], signedHeader{"host", r.Host})
	if r.ContentLength > 0 {
		signed = append(signed, signedHeader{"content-length", strconv.FormatInt(r.ContentLength, 10)})
	}
	for name, v := range r.Header {
		if name != "Expect" {
			signed = append(signed, signedHeader{lowerName(name), v[0]})
		}
	}
	slices.SortFunc(signed, func(a, b signedHeader) int { return strings.Compare(a.name, b.name) })

	out := buffers.Get().(*buffer)
	defer buffers.Put(out)
	b := append(out.b[:0], r.Method...)
	b = append(b, '\n')
	if path := r.URL.EscapedPath(); path != "" {
		b = append(b, path...)
	} else {
		b = append(b, '/')
	}
	b = append(b, "\n\n"...) // no query
	for _, h := range signed {
		b = append(append(append(append(b, h.name...), ':'), h.value...), '\n')
	}
	b = append(b, '\n')
	from := len(b)
	for i, h := range signed {
		if i > 0 {
			b = append(b, ';')
		}
		b = append(b, h.name...)
	}
	names := string(b[from:])
	b = append(append(b, '\n'), payload...)
	k := g.keyOf(c, stamp[:8])
	var room2 [64]byte
	signature := k.appendSignature(room2[:0], &b, stamp)

	b = append(append(append(b[:0], signAlgorithm+" Credential="...), k.id...), '/')
	b = append(append(b, k.scope...), ", SignedHeaders="...)
	b = append(append(b, names...), ", Signature="...)
	b = append(b, signature...)
	r.Header["Authorization"] = []string{string(b)}
	out.b = b
	return nil
}

// signsItself reports whether nothing in r needs one of the rules that only the SDK knows: the
// order of a query, the default port in a host, several values or runs of spaces in a header.
func signsItself(r *http.Request) bool {
	if r.URL.RawQuery != "" || r.URL.Opaque != "" || !signsHost(r.Host) {
		return false
	}
	for name, v := range r.Header {
		if len(v) != 1 || !isPlain(v[0]) {
			return false
		}
		switch name {
		case "Authorization", "User-Agent", "X-Amzn-Trace-Id", "Transfer-Encoding", "Content-Length", "Host":
			return false
		}
	}
	return true
}

// isPlain reports whether a value is signed as it is.
func isPlain(v string) bool { return !strings.Contains(v, "  ") && strings.TrimSpace(v) == v }

var lowerNames = map[string]string{
	"X-Amz-Content-Sha256": "x-amz-content-sha256", "X-Amz-Checksum-Sha256": "x-amz-checksum-sha256",
	"X-Amz-Checksum-Mode": "x-amz-checksum-mode", "X-Amz-Date": "x-amz-date", "X-Amz-Security-Token": "x-amz-security-token",
	"X-Amz-Tagging": "x-amz-tagging", "If-None-Match": "if-none-match", "If-Match": "if-match",
	"Content-Type": "content-type", "Range": "range",
}

func lowerName(name string) string {
	if low, ok := lowerNames[name]; ok {
		return low
	}
	return strings.ToLower(name)
}
