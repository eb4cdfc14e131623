package service

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

// Describe gives an error its failure as handlers' errors get theirs, by the table of a service.
func Describe(err error, t rpc.Table) rpc.Failure { return rpc.Describe(err, t, storeErrors) }

// storeErrors is the table of errors of the object store.
func storeErrors(err error) (rpc.Failure, bool) {
	f := rpc.Failure{Message: err.Error()}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return f, false // the caller's end, not the store's
	case errors.Is(err, objstore.ErrInvalid):
		f.Code, f.Reason = codes.InvalidArgument, rpc.ReasonInvalidArgument
	case errors.Is(err, objstore.ErrNotFound):
		f.Code, f.Reason = codes.NotFound, rpc.ReasonNotFound
	case errors.Is(err, objstore.ErrUnavailable), errors.Is(err, objstore.ErrUnknown),
		errors.Is(err, objstore.ErrDenied), errors.Is(err, objstore.ErrNoBucket), errors.Is(err, objstore.ErrConflict):
		// Denied and no bucket count as unavailable: the client did nothing wrong, and its request is good
		// once an operator has mended the service's settings.
		f.Code, f.Reason, f.RetryAfter = codes.Unavailable, rpc.ReasonStoreUnavailable, rpc.DefaultRetryAfter
	default:
		return f, false
	}
	return f, true
}
