// Package rpc is gRPC as every process speaks it: servers and clients with TLS from files,
// callers with roles, recovery, health, reflection and traces, and statuses with stable reasons.
package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain of every ErrorInfo.
const Domain = "lightmetrics.dev"

// Reasons that any service may give.
const (
	ReasonUnauthenticated = "UNAUTHENTICATED"
	ReasonForbidden       = "PERMISSION_DENIED"
	ReasonRegionDenied    = "REGION_DENIED"
	ReasonOverloaded      = "OVERLOADED"
	ReasonNotReady        = "NOT_READY"
	ReasonDraining        = "DRAINING"
	ReasonInvalidArgument = "INVALID_ARGUMENT"
	ReasonContentEncoding = "CONTENT_ENCODING"
	ReasonNotFound        = "NOT_FOUND"
	ReasonInternal        = "INTERNAL"
	ReasonCanceled        = "CANCELED"
	ReasonDeadline        = "DEADLINE_EXCEEDED"
	// ReasonStoreUnavailable: the object store did not answer, or refuses.
	ReasonStoreUnavailable = "STORE_UNAVAILABLE"
)

// DefaultRetryAfter goes with errors that can be retried and name no time.
const DefaultRetryAfter = time.Second

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
	// WithDetails fails only if a detail cannot be encoded; the status without it is still right.
	if d, err := st.WithDetails(details...); err == nil {
		st = d
	}
	return st.Err()
}

// Table gives errors of a package or service their failures; false where it knows none.
type Table func(error) (Failure, bool)

// Describe maps an error to its failure by the first table that knows it, and then by what
// every service has: refused callers, ends of contexts, and INTERNAL for the rest.
func Describe(err error, tables ...Table) Failure {
	// A service's own table comes before the general cases, since its errors may wrap a context's error
	// and mean something else.
	for _, t := range tables {
		if f, ok := t(err); ok {
			return f
		}
	}
	var denied *DeniedError
	f := Failure{Code: codes.Internal, Reason: ReasonInternal, Message: err.Error()}
	switch {
	case errors.As(err, &denied):
		return denied.failure()
	case errors.Is(err, context.Canceled):
		f.Code, f.Reason = codes.Canceled, ReasonCanceled
	case errors.Is(err, context.DeadlineExceeded):
		// Unavailable and not DEADLINE_EXCEEDED, which gRPC uses for the client's own deadline: here it
		// was one of the server's, and the call may be repeated.
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, ReasonDeadline, DefaultRetryAfter
	}
	return f
}

// Status makes err a status error by the tables; one that already is stays as it is.
func Status(err error, tables ...Table) error {
	if err == nil {
		return nil
	}
	// A handler that made a status of its own has chosen code and reason already.
	if _, ok := status.FromError(err); ok {
		return err
	}
	return Describe(err, tables...).Err()
}

// FailureOf reads a failure back from a status error. One without a reason gets the name of
// its code.
func FailureOf(err error) Failure {
	st := status.Convert(err)
	f := Failure{Code: st.Code(), Message: st.Message(), RetryAfter: RetryAfter(err)}
	for _, d := range st.Details() {
		if i, ok := d.(*errdetails.ErrorInfo); ok {
			f.Reason, f.Metadata = i.GetReason(), i.GetMetadata()
		}
	}
	if f.Reason == "" {
		f.Reason = code.Code(f.Code).String()
	}
	return f
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
