package s3

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// The table of docs/protocol/store.md: every answer, what it means for each operation.
func TestAnswers(t *testing.T) {
	const (
		writes = "create replace put delete"
		puts   = "create replace put"
		bodied = "get list" // reads whose errors have a body
		reads  = "get head list"
	)
	rows := []struct {
		name   string
		h      http.HandlerFunc
		ops    string
		want   error // nil is success
		change func(objstore.Store) objstore.Store
	}{
		{"412", says(412, "PreconditionFailed"), "create", objstore.ErrExists, nil},
		{"412", says(412, "PreconditionFailed"), "replace", objstore.ErrPreconditionFailed, nil},
		{"412 without a body", says(412, ""), "create", objstore.ErrExists, nil},
		{"412 unasked", says(412, "PreconditionFailed"), "put delete", objstore.ErrUnknown, nil},
		{"404 key", says(404, "NoSuchKey"), "replace", objstore.ErrPreconditionFailed, nil},
		{"404 key", says(404, "NoSuchKey"), "get", objstore.ErrNotFound, nil},
		{"404 key", says(404, "NoSuchKey"), "delete", nil, nil},
		{"404 key", says(404, "NoSuchKey"), "create put", objstore.ErrUnknown, nil},
		{"404 bucket", says(404, "NoSuchBucket"), writes + " " + bodied, objstore.ErrNoBucket, nil},
		{"404 bucket", says(404, ""), "head", objstore.ErrNoBucket, nil}, // the bucket's HEAD says 404 too
		{"404 without a code", says(404, ""), bodied, objstore.ErrUnavailable, nil},
		{"404 without a code", says(404, ""), "create put delete", objstore.ErrUnknown, nil},
		{"409", says(409, "ConditionalRequestConflict"), writes, objstore.ErrConflict, nil},
		{"409", says(409, "OperationAborted"), writes, objstore.ErrConflict, nil},
		{"409 other", says(409, "InvalidBucketState"), writes, objstore.ErrInvalid, nil},
		{"409 without a code", says(409, ""), writes, objstore.ErrUnknown, nil},
		{"409 on a read", says(409, "OperationAborted"), bodied, objstore.ErrUnavailable, nil},
		{"400 digest", says(400, "BadDigest"), puts, objstore.ErrChecksum, nil},
		{"400 digest", says(400, "XAmzContentSHA256Mismatch"), puts, objstore.ErrChecksum, nil},
		{"400 digest", says(400, "InvalidDigest"), puts, objstore.ErrChecksum, nil},
		{"400 token", says(400, "ExpiredToken"), writes + " " + bodied, objstore.ErrDenied, nil},
		{"400 timeout", says(400, "RequestTimeout"), writes, objstore.ErrUnknown, nil},
		{"400 timeout", says(400, "RequestTimeout"), bodied, objstore.ErrUnavailable, nil},
		{"400 other", says(400, "InvalidArgument"), writes + " " + bodied, objstore.ErrInvalid, nil},
		{"400 without a code", says(400, ""), writes, objstore.ErrUnknown, nil},
		{"401", says(401, "AccessDenied"), writes + " " + reads, objstore.ErrDenied, nil},
		{"403", says(403, "AccessDenied"), writes + " " + reads, objstore.ErrDenied, nil},
		{"403", says(403, "SignatureDoesNotMatch"), writes + " " + bodied, objstore.ErrDenied, nil},
		{"405", says(405, "MethodNotAllowed"), writes + " " + reads, objstore.ErrInvalid, nil},
		{"413", says(413, ""), writes, objstore.ErrInvalid, nil},
		{"501", says(501, "NotImplemented"), writes + " " + reads, objstore.ErrInvalid, nil},
		{"301", says(301, "PermanentRedirect"), writes + " " + bodied, objstore.ErrInvalid, nil},
		{"307", says(307, "TemporaryRedirect"), writes, objstore.ErrUnknown, nil},
		{"307", says(307, "TemporaryRedirect"), bodied, objstore.ErrUnavailable, nil},
		{"429", says(429, "TooManyRequests"), writes, objstore.ErrUnknown, nil},
		{"429", says(429, "TooManyRequests"), reads, objstore.ErrUnavailable, nil},
		{"500", says(500, "InternalError"), writes, objstore.ErrUnknown, nil},
		{"500", says(500, "InternalError"), reads, objstore.ErrUnavailable, nil},
		{"503", says(503, "SlowDown"), writes, objstore.ErrUnknown, nil},
		{"503", says(503, "SlowDown"), reads, objstore.ErrUnavailable, nil},
		{"504 of a proxy", raw("HTTP/1.1 504 x\r\nContent-Length: 3\r\n\r\n<p>"), writes, objstore.ErrUnknown, nil},

		{"no answer", raw(""), writes, objstore.ErrUnknown, nil},
		{"no answer", raw(""), reads, objstore.ErrUnavailable, nil},
		{"not HTTP", raw("garbage\r\n\r\n"), writes, objstore.ErrUnknown, nil},
		{"not HTTP", raw("garbage\r\n\r\n"), reads, objstore.ErrUnavailable, nil},
		{"cut header", raw("HTTP/1.1 200 OK\r\nETag: \"e"), writes, objstore.ErrUnknown, nil},
		{"cut error body", raw("HTTP/1.1 400 x\r\nContent-Length: 500\r\n\r\n<Error><Code>Bad"), writes, objstore.ErrUnknown, nil},
		{"cut success body", raw("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 10\r\n\r\nabc"), writes, objstore.ErrUnknown, nil},
		{"cut success body", raw("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 10\r\n\r\nabc"), bodied, objstore.ErrUnavailable, nil},
		{"a page instead of an answer", raw("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 5\r\n\r\n<htm>"), writes, objstore.ErrUnknown, nil},
		{"a page instead of an answer", raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<htm>"), reads, objstore.ErrUnavailable, nil},
		{"no ETag", raw("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), puts, objstore.ErrUnknown, nil},
		{"another checksum", raw("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nx-amz-checksum-sha256: AAAA\r\nContent-Length: 0\r\n\r\n"), puts, objstore.ErrUnknown, nil},
		{"success", raw("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nContent-Length: 0\r\n\r\n"), writes + " get head", nil, nil},
		{"204", raw("HTTP/1.1 204 No Content\r\n\r\n"), "delete", nil, nil},
		{"204", raw("HTTP/1.1 204 No Content\r\n\r\n"), puts, objstore.ErrUnknown, nil},
		{"hangs", hangs, writes, objstore.ErrUnknown, impatient},
		{"hangs", hangs, reads, objstore.ErrUnavailable, impatient},
		{"bytes that do not match the checksum", raw("HTTP/1.1 200 OK\r\nETag: \"e\"\r\nx-amz-checksum-sha256: " +
			"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\r\nContent-Length: 3\r\n\r\nabc"), "get", objstore.ErrChecksum, nil},
	}
	sentinels := []error{
		objstore.ErrNotFound, objstore.ErrExists, objstore.ErrPreconditionFailed, objstore.ErrConflict, objstore.ErrUnknown,
		objstore.ErrUnavailable, objstore.ErrChecksum, objstore.ErrDenied, objstore.ErrNoBucket, objstore.ErrInvalid,
	}
	for i, row := range rows {
		for op := range strings.FieldsSeq(row.ops) {
			t.Run(strconv.Itoa(i)+" "+row.name+"/"+op, func(t *testing.T) {
				var requests atomic.Int32
				s := objstore.Store(open(t, func(w http.ResponseWriter, r *http.Request) { requests.Add(1); row.h(w, r) }))
				if row.change != nil {
					s = row.change(s)
				}
				err := ops[op](t.Context(), s)
				if !errors.Is(err, row.want) {
					t.Fatalf("got %v, want %v", err, row.want)
				}
				n := 0
				for _, e := range sentinels {
					if errors.Is(err, e) {
						n++
					}
				}
				if err != nil && n != 1 {
					t.Errorf("%v wraps %d sentinels", err, n)
				}
				// A deadline may pass before the request is sent.
				if got := requests.Load(); strings.Contains(writes, op) && got != 1 && (got != 0 || row.change == nil) {
					t.Errorf("a write was sent %d times", got)
				}
			})
		}
	}
}

func TestRefusedConnectionIsUnknown(t *testing.T) {
	s := open(t, says(200, ""))
	s.base.Host = "127.0.0.1:1"
	for op, fn := range ops {
		want := objstore.ErrUnavailable
		if isWrite(op) {
			want = objstore.ErrUnknown
		}
		if err := fn(t.Context(), s); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", op, err, want)
		}
	}
}

func TestContextEndsAWriteAsUnknown(t *testing.T) {
	for op, fn := range ops {
		arrived := make(chan struct{})
		s := open(t, func(w http.ResponseWriter, r *http.Request) { close(arrived); hangs(w, r) })
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-arrived; cancel() }()
		err := fn(ctx, s)
		want := objstore.ErrUnavailable
		if isWrite(op) {
			want = objstore.ErrUnknown
		}
		if !errors.Is(err, want) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want %v and context.Canceled", op, err, want)
		}
	}
}

func TestHeadTellsKeyFromBucket(t *testing.T) {
	for status, want := range map[int]error{200: objstore.ErrNotFound, 403: objstore.ErrNotFound, 404: objstore.ErrNoBucket, 503: objstore.ErrUnavailable} {
		s := open(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/bucket/k" {
				w.WriteHeader(404)
				return
			}
			w.WriteHeader(status)
		})
		if _, err := s.Head(t.Context(), "k"); !errors.Is(err, want) {
			t.Errorf("bucket says %d: %v, want %v", status, err, want)
		}
	}
}

func TestEveryOperationIsSentOnce(t *testing.T) {
	for op, fn := range ops {
		var n atomic.Int32
		s := open(t, func(w http.ResponseWriter, r *http.Request) { n.Add(1); says(503, "SlowDown")(w, r) })
		fn(t.Context(), s)
		if n.Load() != 1 {
			t.Errorf("%s: %d requests", op, n.Load())
		}
	}
}

// The server refuses at once, reads nothing of a large body, and closes.
func TestEarlyRefusalIsHeard(t *testing.T) {
	s := open(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(412)
	})
	body := make([]byte, 8<<20)
	for range 20 {
		if _, err := s.Create(t.Context(), "k", body, objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) {
			t.Fatalf("%v, want %v", err, objstore.ErrExists)
		}
	}
}
