package reconciler

import (
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	journalv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/journal/v1"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

var (
	workers   = []rpc.Role{rpc.RoleWorker}
	operators = []rpc.Role{rpc.RoleOperator}
	readers   = []rpc.Role{rpc.RoleReader, rpc.RoleOperator}
)

// access allows ledgers, status, garbage and conflicts to people, and decisions to operators.
var access = rpc.Access{
	reconcilerv1.ReconcilerService_ListLedgers_FullMethodName:    readers,
	reconcilerv1.ReconcilerService_GetStatus_FullMethodName:      readers,
	reconcilerv1.ReconcilerService_GetGarbage_FullMethodName:     readers,
	reconcilerv1.ReconcilerService_StartSweep_FullMethodName:     operators,
	reconcilerv1.ReconcilerService_ReleaseBreaker_FullMethodName: operators,

	reconcilerv1.ReconcilerService_ListRepairs_FullMethodName:  readers,
	reconcilerv1.ReconcilerService_GetRepair_FullMethodName:    readers,
	reconcilerv1.ReconcilerService_RetryRepairs_FullMethodName: operators,

	reconcilerv1.ReconcilerService_ListConflicts_FullMethodName:    readers,
	reconcilerv1.ReconcilerService_GetConflict_FullMethodName:      readers,
	reconcilerv1.ReconcilerService_GetOverlap_FullMethodName:       readers,
	reconcilerv1.ReconcilerService_ResolveConflicts_FullMethodName: operators,
	reconcilerv1.ReconcilerService_SetQuarantine_FullMethodName:    operators,
}

// journalAccess allows hints and watches to other services. A reconciler has no frames; the method has a line because
// every method needs one.
var journalAccess = rpc.Access{
	journalv1.JournalService_NotifyJournal_FullMethodName: workers,
	journalv1.JournalService_WatchJournal_FullMethodName:  workers,
	journalv1.JournalService_ReadFrames_FullMethodName:    workers,
}
