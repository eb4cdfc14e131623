package ingest

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
)

// refuse answers a request that does not reach the gateway.
func (s *Service) refuse(w http.ResponseWriter, r *http.Request, err error) {
	f := s.describe(err)
	s.metrics.turnedAway(f)
	s.errlog.log(r.Context(), "request refused", "reason", f.Reason, "error", err, "remote", r.RemoteAddr)
	if r.ProtoMajor == 1 && (f.Reason == string(frame.TooLarge) || f.Reason == string(frame.Truncated)) {
		w.Header().Set("Connection", "close") // the rest of the body is not read
	}
	writeFailure(w, f)
}

// writeError is the gateway's error handler.
func (s *Service) writeError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
	writeFailure(w, failureOf(err))
}

// writeRoutingError is for paths and methods that the gateway does not know.
func (s *Service) writeRoutingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, code int) {
	writeJSON(w, code, map[string]any{
		"error": strings.ReplaceAll(strings.ToLower(http.StatusText(code)), " ", "_"), "message": http.StatusText(code)})
}

// failureOf reads a status error back.
func failureOf(err error) rpc.Failure {
	st := status.Convert(err)
	f := rpc.Failure{Code: st.Code(), Message: st.Message(), Reason: rpc.Reason(err), RetryAfter: rpc.RetryAfter(err)}
	for _, d := range st.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			f.Metadata = i.GetMetadata()
		}
	}
	if f.Reason == "" {
		f.Reason = rpc.ReasonInvalidArgument
	}
	return f
}

// writeFailure is the table of docs/protocol/stream.md. The error is the reason in
// lower case; what travels with it stands beside.
func writeFailure(w http.ResponseWriter, f rpc.Failure) {
	body := map[string]any{"error": strings.ToLower(f.Reason), "message": f.Message}
	for k, v := range f.Metadata {
		body[k] = v
	}
	if f.RetryAfter > 0 {
		body["retry_after_seconds"] = f.RetryAfter.Seconds()
		w.Header().Set("Retry-After", strconv.Itoa(max(int(math.Ceil(f.RetryAfter.Seconds())), 1)))
	}
	code := httpStatus(f)
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="lightmetrics"`)
	}
	writeJSON(w, code, body)
}

func httpStatus(f rpc.Failure) int {
	switch f.Reason {
	case ReasonIdentityConflict:
		return http.StatusConflict
	case string(frame.TooLarge), string(frame.DecodedTooLarge):
		return http.StatusRequestEntityTooLarge
	case ReasonContentEncoding, ReasonContentType:
		return http.StatusUnsupportedMediaType
	}
	switch f.Code {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.NotFound:
		return http.StatusNotFound
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		b, code = []byte(`{"error":"internal"}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // the client went away: nothing to do
}
