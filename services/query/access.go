package query

import (
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

var (
	reads = []rpc.Role{rpc.RoleReader}
	sees  = []rpc.Role{rpc.RoleReader, rpc.RoleOperator}
)

// access: samples are for readers; operators see how complete they are.
var access = rpc.Access{
	queryv1.QueryService_Query_FullMethodName:         reads,
	queryv1.QueryService_QueryRange_FullMethodName:    reads,
	queryv1.QueryService_ListAgents_FullMethodName:    sees,
	queryv1.QueryService_ListConflicts_FullMethodName: sees,
}
