package s3

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/aws/smithy-go/encoding/httpbinding"

	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// maxAnswer bounds, in bytes, what is read of an answer other than an object or a listing.
const maxAnswer = 64 << 10

var emptyPayload = func() string { d := identity.Sum(nil); return hex.EncodeToString(d[:]) }()

// request is one S3 request; key is relative to the prefix, "" is the bucket.
type request struct {
	method string
	key    string
	query  url.Values
	header http.Header // with X-Amz-Content-Sha256
	body   []byte
}

// emptyHeader is the header of a request without a body, with room for n fields in all.
func emptyHeader(n int) http.Header {
	h := make(http.Header, n+3)
	h["X-Amz-Content-Sha256"] = []string{emptyPayload}
	return h
}

// expectFrom is the body size, in bytes, from which "Expect: 100-continue" is sent. A server
// that refuses a conditional write early then does so before the body is sent. Otherwise it
// may close the connection in the middle of the body, and the refusal could be lost.
const expectFrom = 256 << 10

var expectContinue = []string{"100-continue"}

var userAgent = []string{"lightmetrics"}

// send signs and sends the request once. Neither transport sends a PUT or DELETE again after a byte
// of it was written, so a write reaches the store at most once.
func (s *Store) send(ctx context.Context, r request) (*http.Response, error) {
	// A copy, since the base is shared by all requests. RawPath has the escaped form, which is the one
	// that is signed.
	u := s.base
	if r.key != "" {
		key := s.cfg.Prefix + r.key
		u.RawPath = u.EscapedPath() + "/" + httpbinding.EscapePath(key, false)
		u.Path += "/" + key
	}
	if r.query != nil {
		u.RawQuery = r.query.Encode()
	}
	req := &http.Request{
		Method: r.method, URL: &u, Host: u.Host, Header: r.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if r.method == http.MethodPut {
		p := &payload{data: r.body}
		p.attach(req)
		defer p.detach()
		if len(r.body) >= expectFrom {
			r.header["Expect"] = expectContinue
		}
	}
	creds, err := s.creds.Retrieve(ctx)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	if err := s.signer.sign(ctx, creds, req, s.now()); err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	req.Header["User-Agent"] = userAgent
	resp, err := s.rt.RoundTrip(req.WithContext(ctx))
	if err != nil {
		// The transport hides the context's error when the connection breaks first, but callers check for it.
		if cause := ctx.Err(); cause != nil {
			return nil, fmt.Errorf("%w (%v)", cause, err)
		}
		return nil, err
	}
	return resp, nil
}

// readAnswer reads a small answer to its end, so that the connection can be reused.
func readAnswer(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	if resp.ContentLength == 0 || resp.Body == http.NoBody {
		return nil, nil
	}
	// One byte more than the bound, so that a longer answer differs from one of exactly that size.
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return b, fmt.Errorf("cut answer of status %d: %w", resp.StatusCode, err)
	}
	if len(b) > maxAnswer {
		return b[:maxAnswer], fmt.Errorf("answer of status %d has over %d bytes", resp.StatusCode, maxAnswer)
	}
	return b, nil
}
