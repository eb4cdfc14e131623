package coordinator

import (
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

var (
	works    = []rpc.Role{rpc.RoleWorker}
	operates = []rpc.Role{rpc.RoleOperator}
	acts     = []rpc.Role{rpc.RoleWorker, rpc.RoleOperator}
	reads    = []rpc.Role{rpc.RoleReader, rpc.RoleOperator}
	sees     = []rpc.Role{rpc.RoleReader, rpc.RoleOperator, rpc.RoleWorker}
)

// access: workers own and publish, operators order and cancel, readers look on. Operators
// may do to a job what a worker may: that is how lmctl cancels and orders.
var access = rpc.Access{
	coordinatorv1.OwnershipService_Own_FullMethodName:         works,
	coordinatorv1.OwnershipService_Drain_FullMethodName:       operates,
	coordinatorv1.OwnershipService_ListShards_FullMethodName:  reads,
	coordinatorv1.OwnershipService_ListWorkers_FullMethodName: reads,
	coordinatorv1.OwnershipService_ListMoves_FullMethodName:   reads,

	coordinatorv1.WorkService_SendMessage_FullMethodName:       acts,
	coordinatorv1.WorkService_ReceiveMessages_FullMethodName:   works,
	coordinatorv1.WorkService_ReturnMessage_FullMethodName:     works,
	coordinatorv1.WorkService_DeleteMessage_FullMethodName:     works,
	coordinatorv1.WorkService_ListDeadLetters_FullMethodName:   sees,
	coordinatorv1.WorkService_GetDepth_FullMethodName:          sees,
	coordinatorv1.WorkService_RedriveDeadLetter_FullMethodName: operates,
	coordinatorv1.WorkService_CreateJob_FullMethodName:         acts,
	coordinatorv1.WorkService_ClaimJob_FullMethodName:          acts,
	coordinatorv1.WorkService_CheckpointJob_FullMethodName:     acts,
	coordinatorv1.WorkService_ReleaseJob_FullMethodName:        acts,
	coordinatorv1.WorkService_TouchJob_FullMethodName:          acts,
	coordinatorv1.WorkService_CompleteJob_FullMethodName:       acts,
	coordinatorv1.WorkService_GetJob_FullMethodName:            sees,
	coordinatorv1.WorkService_ListJobs_FullMethodName:          sees,
	coordinatorv1.WorkService_GetLog_FullMethodName:            sees,
	coordinatorv1.WorkService_ListLogs_FullMethodName:          sees,
	coordinatorv1.WorkService_ForgetLog_FullMethodName:         acts,

	coordinatorv1.IdentityService_ChangeClaims_FullMethodName: works,
	coordinatorv1.IdentityService_ListClaims_FullMethodName:   sees,
	coordinatorv1.IdentityService_ScanClaims_FullMethodName:   works,

	coordinatorv1.IdentityService_ListRegions_FullMethodName:        reads,
	coordinatorv1.IdentityService_AddRegion_FullMethodName:          operates,
	coordinatorv1.IdentityService_PrepareRegion_FullMethodName:      operates,
	coordinatorv1.IdentityService_RetireRegion_FullMethodName:       operates,
	coordinatorv1.IdentityService_DissolveLinearizer_FullMethodName: operates,
	coordinatorv1.IdentityService_TraceIdentity_FullMethodName:      reads,

	coordinatorv1.RefsService_InitEpoch_FullMethodName:        works,
	coordinatorv1.RefsService_AddRefs_FullMethodName:          works,
	coordinatorv1.RefsService_SwapRefRecord_FullMethodName:    works,
	coordinatorv1.RefsService_CondemnRefs_FullMethodName:      works,
	coordinatorv1.RefsService_DeleteRefRecords_FullMethodName: works,
	coordinatorv1.RefsService_GetEpoch_FullMethodName:         sees,
	coordinatorv1.RefsService_GetRefRecords_FullMethodName:    sees,
	coordinatorv1.RefsService_ListRefRecords_FullMethodName:   sees,
}
