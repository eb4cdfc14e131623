package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestTheErrorTable: the first table that knows an error counts, and what none knows has its
// failure all the same.
func TestTheErrorTable(t *testing.T) {
	errFull := errors.New("full")
	first := func(err error) (Failure, bool) {
		return Failure{Code: codes.ResourceExhausted, Reason: "FULL", RetryAfter: time.Second}, errors.Is(err, errFull)
	}
	second := func(err error) (Failure, bool) {
		return Failure{Code: codes.Aborted, Reason: "SECOND"}, errors.Is(err, errFull) || errors.Is(err, io.ErrNoProgress)
	}
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason string
		retry  bool
	}{
		"first table":  {fmt.Errorf("x: %w", errFull), codes.ResourceExhausted, "FULL", true},
		"second table": {io.ErrNoProgress, codes.Aborted, "SECOND", false},
		"canceled":     {context.Canceled, codes.Canceled, ReasonCanceled, false},
		"deadline":     {context.DeadlineExceeded, codes.Unavailable, ReasonDeadline, true},
		"other":        {errors.New("boom"), codes.Internal, ReasonInternal, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := Status(c.err, first, second)
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

// TestFailureOf: a failure survives its status, and a status of others has a reason all the same.
func TestFailureOf(t *testing.T) {
	want := Failure{Code: codes.Aborted, Reason: "WHY", Message: "m", Metadata: map[string]string{"k": "v"}, RetryAfter: 2 * time.Second}
	if got := FailureOf(want.Err()); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := FailureOf(status.Error(codes.InvalidArgument, "m")); got.Reason != ReasonInvalidArgument || got.Message != "m" {
		t.Errorf("%+v", got)
	}
}
