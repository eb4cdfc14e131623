// Package s3 is the S3 back end of objstore, and its only importer of the AWS SDK.
//
// The SDK provides credentials, endpoint rules, and the signatures of what is not on the hot
// path. Requests are built here and sent by an HTTP transport directly, for two reasons: the
// SDK's request pipeline costs several times the CPU of the request itself, and the acceptance
// protocol depends on which requests are repeated and on how each answer is interpreted.
package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Options are given by the program and not by settings; the zero value is valid.
type Options struct {
	// Now is the clock that requests are signed with; nil is time.Now.
	Now func() time.Time
	// Transport replaces the HTTP transport, for instrumentation.
	Transport http.RoundTripper
}

// Store is a bucket, or the part of it under a prefix. It is safe for concurrent use. Each
// operation sends one request once, without a deadline of its own: objstore.WithPolicy adds
// deadlines and attempts, with the settings of Config.Policy.
type Store struct {
	cfg    Config
	base   url.URL // of the bucket
	creds  aws.CredentialsProvider
	signer *signer
	rt     http.RoundTripper
	plain  *plainSender // nil: rt sends plain requests, too
	now    func() time.Time
}

var _ objstore.Store = (*Store)(nil)

// New prepares the store; it sends no request to it. ctx bounds the search for
// credentials and endpoint.
func New(ctx context.Context, cfg Config, o Options) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, signer: newSigner(cfg.Region), rt: o.Transport, now: o.Now}
	if s.now == nil {
		s.now = time.Now
	}
	var err error
	if s.base, err = cfg.base(ctx); err != nil {
		return nil, err
	}
	if s.rt == nil {
		var err error
		if s.rt, err = cfg.roundTripper(&s.base); err != nil {
			return nil, err
		}
	}
	s.plain = newPlainSender(s)
	if cfg.AccessKeyID != "" {
		s.creds = credentials.NewStaticCredentialsProvider(cfg.AccessKeyID, cfg.SecretAccessKey.Reveal(), "")
		return s, nil
	}
	// Only without keys in the settings: the chain may ask the cloud's metadata service, which takes long
	// where there is none.
	chain, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(cfg.Region))
	if err != nil {
		return nil, fmt.Errorf("s3: default credentials: %w", err)
	}
	s.creds = chain.Credentials
	return s, nil
}

// base is the bucket's base URL by the SDK's endpoint rules.
func (c Config) base(ctx context.Context) (url.URL, error) {
	// The rules of the SDK know partitions, path style and dual-stack names, which nobody should have to
	// write again.
	p := awss3.EndpointParameters{Bucket: &c.Bucket, Region: &c.Region, ForcePathStyle: &c.PathStyle}
	if c.Endpoint != "" {
		endpoint := strings.TrimSuffix(c.Endpoint, "/")
		p.Endpoint = &endpoint
	}
	e, err := awss3.NewDefaultEndpointResolverV2().ResolveEndpoint(ctx, p)
	if err != nil {
		return url.URL{}, fmt.Errorf("s3: endpoint of bucket %q: %w", c.Bucket, err)
	}
	e.URI.Path, e.URI.RawPath = strings.TrimSuffix(e.URI.Path, "/"), ""
	return e.URI, nil
}

// Place is where the bucket is. Two settings that are valid and say the same in other words have the same; two names of one host, outside
// AWS, are two places.
func (c Config) Place() (objstore.Place, error) {
	base, err := c.base(context.Background()) // which makes no request
	return c.place(base), err
}

// Place implements objstore.Placed.
func (s *Store) Place() objstore.Place { return s.cfg.place(s.base) }

func (c Config) place(base url.URL) objstore.Place {
	p := objstore.Place{Endpoint: base.Host, Region: c.Region, Bucket: c.Bucket, Prefix: c.Prefix}
	path := ""
	// The base has the bucket in its host or path; the settings say the endpoint alone.
	if u, err := url.Parse(c.Endpoint); err == nil && c.Endpoint != "" {
		p.Endpoint, path = u.Host, strings.TrimSuffix(u.EscapedPath(), "/")
		if port := u.Port(); port == "443" && u.Scheme == "https" || port == "80" && u.Scheme == "http" {
			p.Endpoint = strings.TrimSuffix(p.Endpoint, ":"+port)
		}
	}
	host := strings.ToLower(p.Endpoint)
	for _, aws := range []string{objstore.EndpointAWS, objstore.EndpointAWSChina} {
		if host == aws || strings.HasSuffix(host, "."+aws) {
			p.Endpoint = aws
			return p
		}
	}
	p.Endpoint = host + path
	return p
}

// Close drops idle connections.
func (s *Store) Close() {
	if t, ok := s.rt.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// Create writes the object if the key is absent: one PutObject with If-None-Match: *.
func (s *Store) Create(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.put(ctx, "create", key, body, o, "If-None-Match", "*")
}

// Replace writes the object if its ETag still is etag: one PutObject with If-Match.
func (s *Store) Replace(ctx context.Context, key string, body []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	// If-Match with "*" replaces whatever exists, and an empty condition may be ignored.
	if etag == "" || etag == "*" {
		return objstore.Info{}, &objstore.Error{Op: "replace", Key: key, Err: fmt.Errorf("%w: etag %q", objstore.ErrInvalid, etag)}
	}
	return s.put(ctx, "replace", key, body, o, "If-Match", etag)
}

// Put writes the object, and replaces an existing one.
func (s *Store) Put(ctx context.Context, key string, body []byte, o objstore.PutOptions) (objstore.Info, error) {
	return s.put(ctx, "put", key, body, o, "", "")
}

// CreateMismatched sends body with a valid signature and a wrong checksum header: a store
// that verifies checksums answers ErrChecksum. It is for the start-up probe.
func (s *Store) CreateMismatched(ctx context.Context, key string, body []byte, claimed identity.Digest) error {
	r := newPut(key, body, objstore.PutOptions{SHA256: identity.Sum(body)}, "If-None-Match", "*")
	r.checksum = claimed
	_, err := s.write(ctx, "create", r)
	return s.wrap("create", key, err)
}

// CopyAbsent copies an object of the bucket onto a key that must be absent. It is for probes of policies: what it copies
// need not be there.
func (s *Store) CopyAbsent(ctx context.Context, key, from string) error {
	h := emptyHeader(4)
	source := url.URL{Path: "/" + s.cfg.Bucket + "/" + s.cfg.Prefix + from}
	h["X-Amz-Copy-Source"] = []string{source.EscapedPath()}
	h["If-None-Match"] = []string{"*"}
	resp, err := s.send(ctx, request{method: http.MethodPut, key: key, header: h})
	if err != nil {
		return s.wrap("copy", key, fmt.Errorf("%w: %w", objstore.ErrUnknown, err))
	}
	text, err := readAnswer(resp)
	switch {
	case err != nil:
		return s.wrap("copy", key, fmt.Errorf("%w: %w", objstore.ErrUnknown, err))
	// A copy may fail in the body of a success.
	case resp.StatusCode == http.StatusOK && parseAnswer(text).Code == "":
		return nil
	}
	return s.wrap("copy", key, classify("get", resp.StatusCode, parseAnswer(text)))
}

// Delete removes the object; an absent key is no error.
func (s *Store) Delete(ctx context.Context, key string) error {
	_, err := s.write(ctx, "delete", &plainRequest{method: http.MethodDelete, key: key})
	// S3 answers 204 for an absent key, some other stores answer 404.
	if errors.Is(err, objstore.ErrNotFound) {
		err = nil
	}
	return s.wrap("delete", key, err)
}

// DeleteVersion removes one version for good; an absent one is no error.
func (s *Store) DeleteVersion(ctx context.Context, key, version string) error {
	err := s.check(key)
	if err == nil {
		err = s.deleteVersion(ctx, key, version)
	}
	return s.wrap("delete", key, err)
}

func (s *Store) deleteVersion(ctx context.Context, key, version string) error {
	if version == "" {
		return fmt.Errorf("%w: no version", objstore.ErrInvalid)
	}
	resp, err := s.send(ctx, request{method: http.MethodDelete, key: key, query: url.Values{"versionId": {version}}, header: emptyHeader(2)})
	if err != nil {
		return fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
	}
	text, err := readAnswer(resp)
	a := parseAnswer(text)
	switch {
	case resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent:
		if err == nil {
			err = (&reply{status: resp.StatusCode, body: text}).plausible("delete", nil)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
		}
		return nil
	// S3 answers 204 for an absent version, some other stores answer 404.
	case resp.StatusCode == http.StatusNotFound && (a.Code == "NoSuchVersion" || a.Code == "NoSuchKey"):
		return nil
	}
	return classify("delete", resp.StatusCode, a)
}

func (s *Store) put(ctx context.Context, op, key string, body []byte, o objstore.PutOptions, condition, value string) (objstore.Info, error) {
	if o.SHA256.IsZero() {
		o.SHA256 = identity.Sum(body)
	}
	p, err := s.write(ctx, op, newPut(key, body, o, condition, value))
	info := objstore.Info{}
	if err == nil {
		// The answer to a PUT has no Last-Modified. Its Date is the store's clock.
		info = objstore.Info{Key: key, Size: int64(len(body)), SHA256: o.SHA256, ETag: p.etag, LastModified: parseDate(p.date)}
	}
	return info, s.wrap(op, key, err)
}

// newPut makes a request that writes an object. One hash of the body is sent in two headers: as the payload hash of
// the signature, and as the checksum that the store verifies and keeps.
func newPut(key string, body []byte, o objstore.PutOptions, condition, value string) *plainRequest {
	r := &plainRequest{
		method: http.MethodPut, key: key, body: body, sum: o.SHA256, checksum: o.SHA256,
		condition: condition, conditionValue: value, contentType: o.ContentType,
	}
	if len(o.Tags) > 0 {
		q := make(url.Values, len(o.Tags))
		for k, v := range o.Tags {
			q.Set(k, v)
		}
		// Encode writes a space as "+", which S3 stores as a plus sign.
		r.tagging = strings.ReplaceAll(q.Encode(), "+", "%20")
	}
	return r
}

// write sends one request once. It succeeds only if the answer is complete and plausible.
func (s *Store) write(ctx context.Context, op string, r *plainRequest) (reply, error) {
	if err := s.check(r.key); err != nil {
		return reply{}, err
	}
	p, err := s.ask(ctx, r)
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
	}
	// A success whose answer is cut off or odd is unknown and no failure: the write was probably applied.
	if p.status == http.StatusOK || p.status == http.StatusNoContent {
		err := p.err
		if err == nil {
			err = p.plausible(op, r)
		}
		if err != nil {
			return reply{}, fmt.Errorf("%w: %w", objstore.ErrUnknown, err)
		}
		return p, nil
	}
	return reply{}, classify(op, p.status, parseAnswer(p.body))
}

// plausible refuses a success that an S3 server would not answer, such as the page of a proxy.
func (p *reply) plausible(op string, r *plainRequest) error {
	if op == "delete" {
		if p.status == http.StatusOK && len(bytes.TrimSpace(p.body)) > 0 {
			return fmt.Errorf("status 200 with a body of %d bytes", len(p.body))
		}
		return nil
	}
	if p.status != http.StatusOK || p.etag == "" || len(bytes.TrimSpace(p.body)) > 0 {
		return fmt.Errorf("status %d, ETag %q, body of %d bytes", p.status, p.etag, len(p.body))
	}
	// Not every store repeats the checksum. One that repeats another one has kept other bytes.
	if p.checksum != "" && p.checksum != r.checksumText() {
		return fmt.Errorf("the store kept checksum %s, sent %s", p.checksum, r.checksumText())
	}
	return nil
}

func (s *Store) wrap(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &objstore.Error{Op: op, Key: key, Err: err}
}

func (s *Store) check(key string) error {
	// An empty key would be the prefix itself, which CheckKey accepts.
	if key == "" {
		return objstore.CheckKey("")
	}
	return objstore.CheckKey(s.cfg.Prefix + key)
}
