package ingest

import (
	"errors"
	"net/http"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// refuse answers a request that is refused before it reaches the gateway.
func (s *Service) refuse(w http.ResponseWriter, r *http.Request, err error) {
	f := s.describe(err)
	s.metrics.countRefused(f)
	s.errlog.log(r.Context(), "request refused", "reason", f.Reason, "error", err, "remote", r.RemoteAddr)
	if r.ProtoMajor == 1 && (f.Reason == string(frame.TooLarge) || f.Reason == string(frame.Truncated)) {
		w.Header().Set("Connection", "close") // the rest of the body is not read
	}
	s.WriteFailure(w, f)
}

// statuses are the HTTP statuses of docs/protocol/stream.md that differ from the usual ones of their gRPC codes.
var statuses = map[string]int{
	ReasonIdentityConflict:        http.StatusConflict,
	string(frame.TooLarge):        http.StatusRequestEntityTooLarge,
	string(frame.DecodedTooLarge): http.StatusRequestEntityTooLarge,
	ReasonContentEncoding:         http.StatusUnsupportedMediaType,
	ReasonContentType:             http.StatusUnsupportedMediaType,
	rpc.ReasonCanceled:            http.StatusServiceUnavailable,
}

// failures maps errors of frames, identities and acceptance to failures; false for other errors.
func failures(err error) (rpc.Failure, bool) {
	var (
		retry   *accept.RetryError
		refused *accept.RefusedError
		bad     *frame.Error
	)
	f := rpc.Failure{Message: err.Error()}
	switch {
	case errors.As(err, &retry):
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, string(retry.Reason), retry.After
		if f.RetryAfter <= 0 {
			f.RetryAfter = rpc.DefaultRetryAfter
		}
	case errors.As(err, &refused):
		f.Code, f.Reason = codes.FailedPrecondition, string(refused.Reason)
	case errors.As(err, &bad):
		f.Code, f.Reason = codes.InvalidArgument, string(bad.Reason)
	case errors.Is(err, identity.ErrInvalid):
		f.Code, f.Reason = codes.InvalidArgument, rpc.ReasonInvalidArgument
	default:
		return f, false
	}
	return f, true
}
