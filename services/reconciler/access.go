package reconciler

import (
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

var (
	works = []rpc.Role{rpc.RoleWorker}
	sees  = []rpc.Role{rpc.RoleReader, rpc.RoleOperator}
)

// access: hints and what is reconciled are between services; people see how far it is.
var access = rpc.Access{
	reconcilerv1.ReconcilerService_NotifyAccepted_FullMethodName: works,
	reconcilerv1.ReconcilerService_WatchAccepted_FullMethodName:  works,
	reconcilerv1.ReconcilerService_ListLedgers_FullMethodName:    sees,
	reconcilerv1.ReconcilerService_GetStatus_FullMethodName:      sees,
}
