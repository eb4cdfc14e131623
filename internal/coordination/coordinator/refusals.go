package coordinator

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
)

// Reasons of the OwnershipService, beside those of internal/platform/rpc.
const (
	// ReasonSessionLost: the worker's session has ended; it must begin another.
	ReasonSessionLost = "SESSION_LOST"
	// ReasonShardCount: other workers of the kind have another number of shards.
	ReasonShardCount = "SHARD_COUNT"
	// ReasonTooMany: no room for another worker.
	ReasonTooMany = "TOO_MANY_WORKERS"
	// ReasonEtcd: the coordinator can't reach its etcd.
	ReasonEtcd = "ETCD_UNAVAILABLE"
)

// RetryAfter is what the coordinator asks for where a later try can succeed.
const RetryAfter = time.Second

// refusals are the decisions of back ends as they travel: the server names the sentinel
// that an error wraps, the client wraps that sentinel again. publish.ErrCondemned is not
// here: it is an answer of AddRefs.
var refusals = slices.Concat(claimRefusals, []refused{
	{work.ErrExists, "WORK_EXISTS", codes.AlreadyExists},
	{work.ErrCompleted, "WORK_COMPLETED", codes.FailedPrecondition},
	{work.ErrLive, "WORK_LIVE", codes.FailedPrecondition},
	{work.ErrMoved, "WORK_MOVED", codes.Aborted},
	{work.ErrFenced, "WORK_FENCED", codes.PermissionDenied},
	{work.ErrNotFound, "WORK_NOT_FOUND", codes.NotFound},
	{work.ErrGone, "WORK_GONE", codes.Aborted},
	{work.ErrFull, "WORK_FULL", codes.ResourceExhausted},
	{work.ErrInvalid, "WORK_INVALID", codes.InvalidArgument},
	{work.ErrUnknown, "WORK_UNKNOWN", codes.Unavailable},
	{work.ErrUnavailable, "WORK_UNAVAILABLE", codes.Unavailable},

	{publish.ErrNoRecord, "REFS_NO_RECORD", codes.NotFound},
	{publish.ErrChanged, "REFS_CHANGED", codes.Aborted},
	{publish.ErrEpochMismatch, "REFS_EPOCH_MISMATCH", codes.FailedPrecondition},
	{publish.ErrRefsFull, "REFS_FULL", codes.ResourceExhausted},
	{publish.ErrRefsInvalid, "REFS_INVALID", codes.InvalidArgument},
	{publish.ErrRefsUnknown, "REFS_UNKNOWN", codes.Unavailable},
})

// claimRefusals are those of the identity linearizer. The first of them is what an error is that the core does not name.
var claimRefusals = []refused{
	{claims.ErrUnknown, "CLAIMS_UNKNOWN", codes.Unavailable},
	{claims.ErrEpoch, "CLAIMS_EPOCH", codes.Aborted},
	{claims.ErrNoMember, "CLAIMS_NO_MEMBER", codes.FailedPrecondition}, // before ErrInvalid, which it is, too
	{claims.ErrInvalid, "CLAIMS_INVALID", codes.InvalidArgument},
	{claims.ErrFull, "CLAIMS_FULL", codes.ResourceExhausted},
	{claims.ErrTooMany, "CLAIMS_TOO_MANY", codes.ResourceExhausted},
	{claims.ErrBusy, "CLAIMS_BUSY", codes.Unavailable},
	{claims.ErrCanceled, "CLAIMS_CANCELED", codes.Canceled},
	{claims.ErrCorrupt, "CLAIMS_CORRUPT", codes.Internal},
	{claims.ErrDissolved, "CLAIMS_DISSOLVED", codes.FailedPrecondition},
	{claims.ErrNewer, "CLAIMS_NEWER", codes.FailedPrecondition},
	{claims.ErrDenied, rpc.ReasonRegionDenied, codes.PermissionDenied},
	{claims.ErrUnavailable, "CLAIMS_UNAVAILABLE", codes.Unavailable},
}

type refused struct {
	sentinel error
	reason   string
	code     codes.Code
}

// sentinelOf is the error that a reason stands for; nil when there is none.
func sentinelOf(reason string) error {
	for _, r := range refusals {
		if r.reason == reason {
			return r.sentinel
		}
	}
	return nil
}

// refusal is err as a status with its reason; nil stays nil.
func refusal(err error) error {
	i := slices.IndexFunc(refusals, func(r refused) bool { return errors.Is(err, r.sentinel) })
	// Not a decision of a back end, such as an ended context.
	if i < 0 {
		return rpc.Status(err)
	}
	r := refusals[i]
	f := rpc.Failure{Code: r.code, Reason: r.reason, Message: err.Error()}
	var e *work.Error
	// The operation and its key travel with the error, so that logs of both sides can be compared.
	if errors.As(err, &e) {
		f.Metadata = map[string]string{"op": e.Op, "key": e.Key}
	}
	// Only these pass by themselves; to repeat any other refusal would be refused again.
	if r.code == codes.Unavailable || r.code == codes.ResourceExhausted {
		f.RetryAfter = RetryAfter
	}
	return f.Err()
}

// answer is resp, or err as a status.
func answer[T any](resp *T, err error) (*T, error) {
	if err != nil {
		return nil, refusal(err)
	}
	return resp, nil
}
