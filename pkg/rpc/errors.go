// Package rpc is the wiring that every gRPC server and client shares: TLS with
// reload, authentication, recovery, health, reflection, traces, and the one table from errors to statuses.
package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

// Domain of every ErrorInfo.
const Domain = "lightmetrics.dev"

// Reasons that do not come from a package of the core.
const (
	ReasonUnauthenticated = "UNAUTHENTICATED"
	ReasonForbidden       = "PERMISSION_DENIED"
	ReasonOverloaded      = "OVERLOADED"
	ReasonNotReady        = "NOT_READY"
	ReasonDraining        = "DRAINING"
	ReasonInvalidArgument = "INVALID_ARGUMENT"
	ReasonContentEncoding = "CONTENT_ENCODING"
	ReasonNotFound        = "NOT_FOUND"
	ReasonInternal        = "INTERNAL"
	ReasonCanceled        = "CANCELED"
	ReasonDeadline        = "DEADLINE_EXCEEDED"
)

// defaultRetryAfter goes with errors that can be retried and name no time.
const defaultRetryAfter = time.Second

// Failure is a status with a stable reason.
type Failure struct {
	Code     codes.Code
	Reason   string
	Message  string
	Metadata map[string]string
	// RetryAfter adds RetryInfo; 0 adds none.
	RetryAfter time.Duration
}

// Err is the failure as a gRPC status with ErrorInfo and RetryInfo.
func (f Failure) Err() error {
	st := status.New(f.Code, f.Message)
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: f.Reason, Domain: Domain, Metadata: f.Metadata}}
	if f.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(f.RetryAfter)})
	}
	if d, err := st.WithDetails(details...); err == nil {
		st = d
	}
	return st.Err()
}

// Describe maps an error to its failure: the one table.
func Describe(err error) Failure {
	var (
		retry   *accept.RetryError
		refused *accept.RefusedError
		bad     *frame.Error
		denied  *DeniedError
	)
	f := Failure{Code: codes.Internal, Reason: ReasonInternal, Message: err.Error()}
	switch {
	case errors.As(err, &denied):
		return denied.failure()
	case errors.As(err, &retry):
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, string(retry.Reason), retry.After
		if f.RetryAfter <= 0 {
			f.RetryAfter = defaultRetryAfter
		}
	case errors.As(err, &refused):
		f.Code, f.Reason = codes.FailedPrecondition, string(refused.Reason)
	case errors.As(err, &bad):
		f.Code, f.Reason = codes.InvalidArgument, string(bad.Reason)
	case errors.Is(err, identity.ErrInvalid), errors.Is(err, objstore.ErrInvalid):
		f.Code, f.Reason = codes.InvalidArgument, ReasonInvalidArgument
	case errors.Is(err, objstore.ErrNotFound):
		f.Code, f.Reason = codes.NotFound, ReasonNotFound
	case errors.Is(err, context.Canceled):
		f.Code, f.Reason = codes.Canceled, ReasonCanceled
	case errors.Is(err, context.DeadlineExceeded):
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, ReasonDeadline, defaultRetryAfter
	case errors.Is(err, objstore.ErrUnavailable), errors.Is(err, objstore.ErrUnknown),
		errors.Is(err, objstore.ErrDenied), errors.Is(err, objstore.ErrNoBucket), errors.Is(err, objstore.ErrConflict):
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, string(accept.ReasonStoreUnavailable), defaultRetryAfter
	}
	return f
}

// Status makes err a status error; one that already is stays as it is.
func Status(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return Describe(err).Err()
}

// Reason reads the ErrorInfo reason of a status error; "" when it has none.
func Reason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			return i.GetReason()
		}
	}
	return ""
}

// RetryAfter reads the RetryInfo of a status error; 0 when it has none.
func RetryAfter(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if i, ok := d.(*errdetails.RetryInfo); ok {
			return i.GetRetryDelay().AsDuration()
		}
	}
	return 0
}
