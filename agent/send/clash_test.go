package send_test

import (
	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
)

func clashError() error {
	return rpc.Failure{Code: codes.FailedPrecondition, Reason: "BOOT_ID_CLASH", Message: "the boot is another spool's"}.Err()
}
