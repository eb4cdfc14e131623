package coordinator

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/etcd"
)

var errDraining = rpc.Failure{Code: codes.Unavailable, Reason: rpc.ReasonDraining, Message: "the coordinator shuts down", RetryAfter: coordinator.RetryAfter}.Err()

func invalid(err error) error {
	return rpc.Failure{Code: codes.InvalidArgument, Reason: rpc.ReasonInvalidArgument, Message: err.Error()}.Err()
}

// failure gives an error its status. What is not a decision is a failure of etcd.
func failure(err error) error {
	var count *etcd.ShardCountError
	// An error that has a reason already was decided deeper down.
	if s, ok := status.FromError(err); err == nil || ok && rpc.Reason(s.Err()) != "" {
		return err
	}
	f := rpc.Failure{Code: codes.Unavailable, Reason: coordinator.ReasonEtcd, Message: err.Error(), RetryAfter: coordinator.RetryAfter}
	switch {
	case errors.Is(err, etcd.ErrSessionLost):
		f = rpc.Failure{Code: codes.FailedPrecondition, Reason: coordinator.ReasonSessionLost, Message: err.Error()}
	case errors.As(err, &count):
		f = rpc.Failure{Code: codes.FailedPrecondition, Reason: coordinator.ReasonShardCount, Message: err.Error(),
			Metadata: map[string]string{"shards": fmt.Sprint(count.Have)}}
	case errors.Is(err, etcd.ErrTooMany):
		f = rpc.Failure{Code: codes.ResourceExhausted, Reason: coordinator.ReasonTooMany, Message: err.Error(), RetryAfter: coordinator.RetryAfter}
	case errors.Is(err, etcd.ErrNoWorker):
		f = rpc.Failure{Code: codes.NotFound, Reason: rpc.ReasonNotFound, Message: err.Error()}
	case errors.Is(err, context.Canceled):
		f = rpc.Failure{Code: codes.Canceled, Reason: rpc.ReasonCanceled, Message: err.Error()}
	}
	return f.Err()
}
