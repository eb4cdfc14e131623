package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/pkg/accept"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/objstore"
)

func TestTheErrorTable(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason string
		retry  bool
	}{
		"retry":       {&accept.RetryError{Reason: accept.ReasonContended, After: 3 * time.Second, Err: objstore.ErrConflict}, codes.Unavailable, "CONTENDED", true},
		"refused":     {fmt.Errorf("hello: %w", &accept.RefusedError{Reason: accept.ReasonBootIDClash, Err: errors.New("x")}), codes.FailedPrecondition, "BOOT_ID_CLASH", false},
		"identity":    {identity.Batch{}.Validate(), codes.InvalidArgument, ReasonInvalidArgument, false},
		"not found":   {&objstore.Error{Op: "get", Key: "k", Err: objstore.ErrNotFound}, codes.NotFound, ReasonNotFound, false},
		"unavailable": {&objstore.Error{Op: "list", Err: objstore.ErrUnavailable}, codes.Unavailable, "STORE_UNAVAILABLE", true},
		"canceled":    {context.Canceled, codes.Canceled, ReasonCanceled, false},
		"deadline":    {context.DeadlineExceeded, codes.Unavailable, ReasonDeadline, true},
		"other":       {errors.New("boom"), codes.Internal, ReasonInternal, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := Status(c.err)
			if got := status.Code(err); got != c.code {
				t.Errorf("code %s, want %s", got, c.code)
			}
			if got := Reason(err); got != c.reason {
				t.Errorf("reason %q, want %q", got, c.reason)
			}
			if got := RetryAfter(err) > 0; got != c.retry {
				t.Errorf("RetryInfo %v, want %v", got, c.retry)
			}
		})
	}
	if got := Status(nil); got != nil {
		t.Errorf("nil became %v", got)
	}
	orig := status.Error(codes.Aborted, "as it is")
	if got := Status(orig); status.Code(got) != codes.Aborted {
		t.Errorf("a status became %v", got)
	}
}
