package s3

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Get reads an object into memory. A whole object is verified against the SHA-256
// that the store keeps for it, if any.
func (s *Store) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	err := s.check(key)
	if err == nil {
		var body []byte
		var info objstore.Info
		if body, info, err = s.get(ctx, key, o); err == nil {
			return body, info, nil
		}
	}
	return nil, objstore.Info{}, s.wrap("get", key, err)
}

// Head describes an object. The 404 of a HEAD has no body that distinguishes a missing key
// from a missing bucket, so it is followed by a HEAD of the bucket.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	err := s.check(key)
	if err == nil {
		var info objstore.Info
		if info, err = s.head(ctx, key); err == nil {
			return info, nil
		}
	}
	return objstore.Info{}, s.wrap("head", key, err)
}

func (s *Store) get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if o.Offset < 0 || o.Length < 0 {
		return nil, objstore.Info{}, fmt.Errorf("%w: range %d+%d", objstore.ErrInvalid, o.Offset, o.Length)
	}
	r := plainRequest{method: http.MethodGet, key: key, withChecksum: true, limit: o.Limit}
	if r.limit == 0 {
		r.limit = objstore.DefaultGetLimit
	}
	ranged := o.Offset > 0 || o.Length > 0
	if ranged {
		r.byteRange = rangeHeader(o)
	}
	p, err := s.ask(ctx, &r)
	if err != nil {
		return nil, objstore.Info{}, fmt.Errorf("%w: %w", objstore.ErrUnavailable, err)
	}
	switch {
	case p.status == http.StatusRequestedRangeNotSatisfiable && o.Offset == 0:
		// Only an empty object has no first byte. It is read whole, which gives its description, too.
		return s.get(ctx, key, objstore.GetOptions{Limit: o.Limit})
	case !p.isObject(r.method):
		return nil, objstore.Info{}, classify("get", p.status, parseAnswer(p.body))
	}
	info, err := p.object(key)
	// A server that ignores Range sends other bytes than were asked for.
	if err == nil && ranged != (p.status == http.StatusPartialContent) {
		err = fmt.Errorf("%w: status %d for a range of %q", objstore.ErrUnavailable, p.status, r.byteRange)
	}
	if err == nil && ranged {
		info.Size, err = p.totalSize(o)
	}
	switch {
	case err != nil:
	case p.unread:
		err = fmt.Errorf("%w: %d bytes, limit %d", objstore.ErrInvalid, p.length, r.limit)
	case p.err != nil:
		err = fmt.Errorf("%w: cut body: %w", objstore.ErrUnavailable, p.err)
	case !ranged && !info.SHA256.IsZero() && identity.Sum(p.body) != info.SHA256:
		err = fmt.Errorf("%w: the bytes do not hash to %s", objstore.ErrChecksum, info.SHA256)
	}
	if err != nil {
		return nil, objstore.Info{}, err
	}
	return p.body, info, nil
}

func rangeHeader(o objstore.GetOptions) string {
	s := "bytes=" + strconv.FormatInt(o.Offset, 10) + "-"
	if o.Length > 0 {
		s += strconv.FormatInt(o.Offset+o.Length-1, 10)
	}
	return s
}

// totalSize returns the object's size from Content-Range and checks that the range is the requested one.
func (p *reply) totalSize(o objstore.GetOptions) (int64, error) {
	cr := p.contentRange
	span, total, _ := strings.Cut(strings.TrimPrefix(cr, "bytes "), "/")
	first, last, _ := strings.Cut(span, "-")
	from, err1 := strconv.ParseInt(first, 10, 64)
	to, err2 := strconv.ParseInt(last, 10, 64)
	size, err3 := strconv.ParseInt(total, 10, 64)
	want := size - 1
	if o.Length > 0 {
		want = min(want, o.Offset+o.Length-1)
	}
	if errors.Join(err1, err2, err3) != nil || from != o.Offset || to != want || p.length != to-from+1 {
		return 0, fmt.Errorf("%w: asked for %q, got Content-Range %q and %d bytes", objstore.ErrUnavailable, rangeHeader(o), cr, p.length)
	}
	return size, nil
}

func (s *Store) head(ctx context.Context, key string) (objstore.Info, error) {
	p, err := s.ask(ctx, &plainRequest{method: http.MethodHead, key: key, withChecksum: true})
	if err != nil {
		return objstore.Info{}, fmt.Errorf("%w: %w", objstore.ErrUnavailable, err)
	}
	switch p.status {
	case http.StatusOK:
		return p.object(key)
	case http.StatusNotFound:
		return objstore.Info{}, s.absent(ctx)
	}
	return objstore.Info{}, classify("head", p.status, answer{})
}

// absent finds out what the 404 of a HEAD means: no key or no bucket.
func (s *Store) absent(ctx context.Context) error {
	resp, err := s.send(ctx, request{method: http.MethodHead, header: emptyHeader(2)})
	if err != nil {
		return fmt.Errorf("%w: %w", objstore.ErrUnavailable, err)
	}
	drain(resp)
	switch resp.StatusCode {
	case http.StatusOK, http.StatusForbidden:
		// Forbidden means that the bucket exists. S3 answers 404 for a key only to callers that may list.
		return objstore.ErrNotFound
	case http.StatusNotFound:
		return objstore.ErrNoBucket
	}
	return classify("head", resp.StatusCode, answer{})
}

// object reads the description from the headers. An answer without size or ETag is not from an S3 server.
func (p *reply) object(key string) (objstore.Info, error) {
	info := objstore.Info{Key: key, Size: p.length, ETag: p.etag, Version: p.version}
	if info.ETag == "" || info.Size < 0 {
		return info, fmt.Errorf("%w: status %d with ETag %q and length %d", objstore.ErrUnavailable, p.status, info.ETag, info.Size)
	}
	info.LastModified, _ = http.ParseTime(p.modified)
	// The source of a replication says PENDING, COMPLETED or FAILED here.
	info.Replica = strings.EqualFold(p.replication, "REPLICA")
	// The composite checksum of a multipart object ("…-2") is not the hash of its bytes; it does not decode.
	if b, err := base64.StdEncoding.DecodeString(p.checksum); err == nil && len(b) == len(info.SHA256) {
		copy(info.SHA256[:], b)
	}
	return info, nil
}

func drain(resp *http.Response) {
	io.Copy(io.Discard, io.LimitReader(resp.Body, maxAnswer))
	resp.Body.Close()
}
