package place

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/sigv4"
)

// client sends the few requests of S3 that a place needs. It signs them itself: the store has the
// signature for its own face, and the SDK would be the largest dependency of the package for a
// dozen requests.
type client struct {
	http   *http.Client
	base   *url.URL
	bucket string
	keys   sigv4.Credentials
}

const (
	// requestTime is how long a request may take, all tries together.
	requestTime = 2 * time.Minute
	// tries of a request that did not reach the store, or that it asks to be sent again.
	tries      = 4
	firstPause = 100 * time.Millisecond
	// answerLimit bounds what is read of an answer that is not an object, bytes.
	answerLimit = 8 << 20
	idlePerHost = 32
	dialTime    = 5 * time.Second
	headerTime  = 30 * time.Second
)

func newClient(base *url.URL, opt BucketOptions) *client {
	c := opt.Client
	if c == nil {
		c = &http.Client{Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialTime}).DialContext,
			MaxIdleConnsPerHost: idlePerHost, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: dialTime,
			ResponseHeaderTimeout: headerTime, DisableCompression: true,
		}}
	}
	region := opt.Region
	if region == "" {
		region = "us-east-1"
	}
	return &client{http: c, base: base, bucket: opt.Bucket, keys: sigv4.Credentials{AccessKey: opt.AccessKey, Secret: opt.SecretKey, Region: region}}
}

// request is one of S3.
type request struct {
	method string
	key    string // empty: of the bucket
	query  url.Values
	header map[string]string
	body   []byte
	// once: the request takes effect only the first time, so it is not sent again when its answer was
	// lost; the error is ErrUnknown then.
	once bool
	// limit of the answer, bytes; 0: answerLimit.
	limit int64
}

// answer is what a store said.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// statusError is an answer that is an error.
type statusError struct {
	status        int
	Code, Message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("it answered %d %s %s", e.status, e.Code, e.Message)
}

// Is says what the answer means for a file.
func (e *statusError) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		// A bucket that is not there is a place that is not there, and says nothing of a file.
		return e.status == http.StatusNotFound && e.Code != "NoSuchBucket"
	case fs.ErrExist:
		return e.status == http.StatusPreconditionFailed
	case ErrOut:
		return e.status != http.StatusPreconditionFailed && !e.Is(fs.ErrNotExist)
	}
	return false
}

// ask sends a request, again where that is harmless, and gives the answer.
func (c *client) ask(ctx context.Context, r request) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	pause := firstPause
	for try := 1; ; try++ {
		a, sent, err := c.send(ctx, r)
		again := err != nil && (!sent || !r.once)
		if err == nil {
			if a.status < 300 {
				return a, nil
			}
			err = errorOf(a)
			again = a.status >= 500 || a.status == http.StatusTooManyRequests || a.status == http.StatusConflict
			// An error of a proxy may hide that the request took effect.
			if again && r.once && a.status != http.StatusServiceUnavailable && a.status != http.StatusConflict {
				return a, fmt.Errorf("%w: %w", ErrUnknown, err)
			}
		} else {
			err = fmt.Errorf("%w: %w", ErrOut, err)
			if !again {
				return a, fmt.Errorf("%w: %w", ErrUnknown, err)
			}
		}
		if !again || try == tries || ctx.Err() != nil {
			return a, err
		}
		select {
		case <-ctx.Done():
			return a, err
		case <-time.After(pause/2 + rand.N(pause)):
			pause *= 3
		}
	}
}

// send sends a request once. sent is false when the store cannot have seen it.
func (c *client) send(ctx context.Context, r request) (a answer, sent bool, err error) {
	u := *c.base
	u.Path = "/" + c.bucket
	if r.key != "" {
		u.Path += "/" + r.key
	}
	u.RawQuery = strings.ReplaceAll(r.query.Encode(), "+", "%20")
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.body))
	if err != nil {
		return a, false, err
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	// The hash goes along with the body, so that the other store refuses bytes that changed on the way.
	c.keys.Sign(req, sha256.Sum256(r.body), time.Now())
	resp, err := c.http.Do(req)
	if err != nil {
		var op *net.OpError
		return a, !(errors.As(err, &op) && op.Op == "dial"), err
	}
	defer resp.Body.Close()
	limit := r.limit
	if limit == 0 || resp.StatusCode >= 300 {
		limit = answerLimit
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit))
	return answer{resp.StatusCode, resp.Header, body}, true, err
}

func errorOf(a answer) error {
	e := &statusError{status: a.status}
	_ = xml.Unmarshal(a.body, e) // an answer without a body has its status
	return e
}

// askXML reads an answer into v.
func (c *client) askXML(ctx context.Context, r request, v any) error {
	a, err := c.ask(ctx, r)
	if err != nil {
		return err
	}
	if err := xml.Unmarshal(a.body, v); err != nil {
		return fmt.Errorf("%w: %w", ErrOut, err)
	}
	return nil
}

// get reads n bytes of an object from off on, and gives its size.
func (c *client) get(ctx context.Context, key string, off, n int64) ([]byte, int64, error) {
	return c.ranged(ctx, key, fmt.Sprintf("bytes=%d-%d", off, off+n-1), n)
}

// tail reads the last n bytes of an object, and gives its size.
func (c *client) tail(ctx context.Context, key string, n int64) ([]byte, int64, error) {
	return c.ranged(ctx, key, fmt.Sprintf("bytes=-%d", n), n)
}

func (c *client) ranged(ctx context.Context, key, which string, n int64) ([]byte, int64, error) {
	a, err := c.ask(ctx, request{method: http.MethodGet, key: key, header: map[string]string{"Range": which}, limit: n + 1})
	var bad *statusError
	if errors.As(err, &bad) && bad.status == http.StatusRequestedRangeNotSatisfiable {
		return nil, 0, nil // an empty object
	}
	if err != nil {
		return nil, 0, err
	}
	switch {
	case a.status == http.StatusOK && len(a.body) == 0:
		return nil, 0, nil // an empty object has no ranges
	case a.status == http.StatusOK:
		return nil, 0, fmt.Errorf("%w: it serves no ranges", ErrOut)
	}
	_, total, _ := strings.Cut(a.header.Get("Content-Range"), "/")
	size, err := strconv.ParseInt(total, 10, 64)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: it answers a range with %q", ErrOut, a.header.Get("Content-Range"))
	}
	return a.body, size, nil
}

func (c *client) head(ctx context.Context, key string) (int64, time.Time, error) {
	a, err := c.ask(ctx, request{method: http.MethodHead, key: key})
	if err != nil {
		return 0, time.Time{}, err
	}
	size, err := strconv.ParseInt(a.header.Get("Content-Length"), 10, 64)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("%w: it gives no length", ErrOut)
	}
	modified, _ := http.ParseTime(a.header.Get("Last-Modified"))
	return size, modified, nil
}

var ifAbsent = map[string]string{"If-None-Match": "*"}

// create writes an object that must not be there.
func (c *client) create(ctx context.Context, key string, body []byte) error {
	_, err := c.ask(ctx, request{method: http.MethodPut, key: key, header: ifAbsent, body: body})
	return err
}

func (c *client) remove(ctx context.Context, key string) error {
	_, err := c.ask(ctx, request{method: http.MethodDelete, key: key})
	return err
}

func (c *client) copy(ctx context.Context, from, to string) error {
	a, err := c.ask(ctx, request{method: http.MethodPut, key: to, header: map[string]string{"X-Amz-Copy-Source": "/" + c.bucket + "/" + from}})
	if err == nil && bytes.Contains(a.body, []byte("<Error>")) {
		return errorOf(answer{status: http.StatusInternalServerError, body: a.body}) // S3 may fail after it answered 200
	}
	return err
}

func (c *client) begin(ctx context.Context, key string) (string, error) {
	var out struct {
		XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
		UploadID string   `xml:"UploadId"`
	}
	err := c.askXML(ctx, request{method: http.MethodPost, key: key, query: url.Values{"uploads": {""}}}, &out)
	if err == nil && out.UploadID == "" {
		err = fmt.Errorf("%w: it gave no id of an upload", ErrOut)
	}
	return out.UploadID, err
}

func (c *client) part(ctx context.Context, key, upload string, number int, body []byte) (string, error) {
	q := url.Values{"partNumber": {strconv.Itoa(number)}, "uploadId": {upload}}
	a, err := c.ask(ctx, request{method: http.MethodPut, key: key, query: q, body: body})
	return a.header.Get("Etag"), err
}

// completion is the body of CompleteMultipartUpload.
type completion struct {
	XMLName xml.Name       `xml:"CompleteMultipartUpload"`
	Part    []completePart `xml:"Part"`
}

type completePart struct {
	PartNumber int
	ETag       string
}

func (c *client) complete(ctx context.Context, key, upload string, tags []string) error {
	var in completion
	for i, t := range tags {
		in.Part = append(in.Part, completePart{i + 1, t})
	}
	body, err := xml.Marshal(in)
	if err != nil {
		return err
	}
	a, err := c.ask(ctx, request{method: http.MethodPost, key: key, query: url.Values{"uploadId": {upload}}, header: ifAbsent, body: body, once: true})
	if err == nil && bytes.Contains(a.body, []byte("<Error>")) {
		return fmt.Errorf("%w: %w", ErrUnknown, errorOf(answer{status: http.StatusInternalServerError, body: a.body}))
	}
	return err
}

func (c *client) abort(ctx context.Context, key, upload string) error {
	_, err := c.ask(ctx, request{method: http.MethodDelete, key: key, query: url.Values{"uploadId": {upload}}})
	return err
}
