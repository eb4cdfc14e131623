package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"os"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/jsonbatch"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/internal/service"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// SpoolIDHeader carries SubmitBatchRequest.spool_id.
const SpoolIDHeader = "X-Lightmetrics-Spool-Id"

// api describes the gRPC and HTTP API of a collector. Admission and the bounded read of a body
// happen before the gateway, which calls the service directly.
func (s *Service) api() service.API {
	return service.API{
		Desc: &ingestv1.IngestService_ServiceDesc, Impl: s, Access: access, Errors: failures, Statuses: statuses,
		JSON: service.JSON(ingestv1.NewIngestServiceClient, ingestv1.RegisterIngestServiceHandlerClient),
		Route: func(r web.Route) web.Route {
			r.About, r.OwnBody, r.Deny, r.Handler = "takes one batch: a frame, or its JSON form", true, s.deny, s.takeBody(r.Handler)
			return r
		},
	}
}

// deny answers callers without the role for a route.
func (s *Service) deny(w http.ResponseWriter, r *http.Request, err error) {
	var denied *rpc.DeniedError
	if errors.As(err, &denied) {
		s.refuse(w, r, err)
		return
	}
	s.refuse(w, r, failed(codes.Unauthenticated, rpc.ReasonUnauthenticated, "%v", err))
}

type bodyKey struct{}

// frameBody is a request body that was read already: the gateway's decoder uses its bytes.
type frameBody struct {
	io.ReadCloser        // empty
	bytes         []byte // of the frame
	spoolID       string
	decision      decision
}

// takeBody admits a request, reads its body into a pooled buffer and calls next with it.
func (s *Service) takeBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		form, limit, err := s.checkHeaders(r)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		if _, err := s.ready(); err != nil {
			s.refuse(w, r, err)
			return
		}
		if n := s.requests.Add(1); n > int64(s.limits().Streams) {
			s.requests.Add(-1)
			s.metrics.sheds.WithLabelValues("requests").Inc()
			s.refuse(w, r, failed(codes.ResourceExhausted, rpc.ReasonOverloaded, "%d requests are open", n-1).after(s.cfg.Limits.RetryAfter))
			return
		}
		defer s.requests.Add(-1)
		n := int(r.ContentLength)
		if n < 0 {
			// The length is unknown (chunked), so room for the largest body is reserved.
			n = int(limit)
		}
		room := n * form.room
		arrived, err := s.admitBody(r.Context(), room)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		defer s.release(room)
		b := s.buffers.get(n)
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.limits().BodyTimeout)) // not supported: the server's idle timeout stays
		b, err = readBody(http.MaxBytesReader(w, r.Body, limit), b, r.ContentLength >= 0)
		arrived()
		if errors.Is(err, os.ErrDeadlineExceeded) { // a slow connection is no fault of the frame, so the sender may try again
			err = failed(codes.Unavailable, rpc.ReasonDeadline, "the body took longer than %v", s.limits().BodyTimeout).after(s.cfg.Limits.RetryAfter)
			w.Header().Set("Connection", "close")
		}
		if err != nil {
			s.buffers.put(b)
			s.refuse(w, r, err)
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		failpoint.Hit("ingest.http.body.received")
		if form.frame != nil {
			f, err := form.frame(b, s.cfg.Limits.frameLimits())
			s.buffers.put(b)
			if err != nil {
				s.refuse(w, r, err)
				return
			}
			b = f
		}
		body := &frameBody{ReadCloser: http.NoBody, bytes: b, spoolID: r.Header.Get(SpoolIDHeader)}
		r = r.WithContext(context.WithValue(r.Context(), bodyKey{}, body))
		r.Body, r.URL.RawQuery = body, "" // query parameters must not become fields of the request
		next.ServeHTTP(w, r)
		failpoint.Hit("ingest.http.answer.after")
		s.recycle(b, body.decision)
	})
}

// form is a format in which a batch may be sent.
type form struct {
	// limit of the body in bytes, in addition to that of frames.
	limit int64
	// room is the memory that is reserved for each byte of the body.
	room int
	// frame makes a frame of the body; nil if the body is the frame.
	frame func(body []byte, lim frame.Limits) ([]byte, error)
}

// forms maps media types to formats. JSON needs more room, because parsed samples are Go values before they are a frame.
var forms = map[string]form{
	frame.MediaType:     {limit: math.MaxInt64, room: 1},
	jsonbatch.MediaType: {limit: jsonbatch.MaxBytes, room: 8, frame: jsonbatch.Encode},
}

// checkHeaders refuses requests that can be refused before the body is read, and returns the format and the largest size of the body.
func (s *Service) checkHeaders(r *http.Request) (form, int64, error) {
	for _, e := range r.Header.Values("Content-Encoding") {
		if e != "" && e != "identity" {
			return form{}, 0, failed(codes.InvalidArgument, ReasonContentEncoding,
				"Content-Encoding %q: compression lives in the frame, whose exact bytes are hashed", e)
		}
	}
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	as, ok := forms[t]
	if err != nil || !ok {
		return form{}, 0, failed(codes.InvalidArgument, ReasonContentType, "Content-Type %q, want %s or %s", r.Header.Get("Content-Type"), frame.MediaType, jsonbatch.MediaType)
	}
	// The gateway selects its marshaler by the exact value, and the body is a frame by then.
	r.Header.Set("Content-Type", frame.MediaType)
	r.Header.Set("Accept", frame.MediaType)
	limit := min(int64(s.cfg.Limits.FrameBytes), as.limit)
	if r.ContentLength > limit {
		return form{}, 0, &frame.Error{Reason: frame.TooLarge, Detail: fmt.Sprintf("Content-Length is over the limit of %d bytes", limit)}
	}
	return as, limit, nil
}

// readBody reads the body into b, and returns the part that was filled. With exact, b has the
// length of the content; else it has the length of the limit, and the body may be shorter.
func readBody(r io.Reader, b []byte, exact bool) ([]byte, error) {
	n, err := io.ReadFull(r, b)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return b, &frame.Error{Reason: frame.TooLarge, Detail: "body is over the limit"}
	case err == nil && exact:
		return b, nil
	case err == nil: // b is full: one more byte would be over the limit
		if k, err := r.Read(make([]byte, 1)); k > 0 || errors.As(err, &tooLarge) {
			return b, &frame.Error{Reason: frame.TooLarge, Detail: "body is over the limit"}
		}
		return b, nil
	case !exact && (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)):
		return b[:n], nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return b, err
	}
	return b, &frame.Error{Reason: frame.Truncated, Detail: "body ended early: " + err.Error()}
}
