package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/pkg/coord"
	"lightmetrics.dev/lightmetrics/pkg/rpc"
)

// Reasons of this service's errors, beside those of pkg/rpc.
const (
	reasonSessionLost = "SESSION_LOST"
	reasonShardCount  = "SHARD_COUNT"
	reasonTooMany     = "TOO_MANY_WORKERS"
	reasonEtcd        = "ETCD_UNAVAILABLE"
)

const retryAfter = time.Second

var errDraining = rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonDraining, Message: "the coordinator shuts down", RetryAfter: retryAfter}.Err()

func invalid(err error) error {
	return rpc.Failure{Code: codes.InvalidArgument, Reason: rpc.ReasonInvalidArgument, Message: err.Error()}.Err()
}

// failure gives an error its status. What is not a decision is a failure of etcd.
func failure(err error) error {
	var count *coord.ShardCountError
	if s, ok := status.FromError(err); err == nil || ok && rpc.Reason(s.Err()) != "" {
		return err
	}
	f := rpc.Failure{Code: codes.Unavailable, Reason: reasonEtcd, Message: err.Error(), RetryAfter: retryAfter}
	switch {
	case errors.Is(err, coord.ErrSessionLost):
		f = rpc.Failure{Code: codes.FailedPrecondition, Reason: reasonSessionLost, Message: err.Error()}
	case errors.As(err, &count):
		f = rpc.Failure{Code: codes.FailedPrecondition, Reason: reasonShardCount, Message: err.Error(),
			Metadata: map[string]string{"shards": fmt.Sprint(count.Have)}}
	case errors.Is(err, coord.ErrTooMany):
		f = rpc.Failure{Code: codes.ResourceExhausted, Reason: reasonTooMany, Message: err.Error(), RetryAfter: retryAfter}
	case errors.Is(err, coord.ErrNoWorker):
		f = rpc.Failure{Code: codes.NotFound, Reason: rpc.ReasonNotFound, Message: err.Error()}
	case errors.Is(err, context.Canceled):
		f = rpc.Failure{Code: codes.Canceled, Reason: rpc.ReasonCanceled, Message: err.Error()}
	}
	return f.Err()
}
