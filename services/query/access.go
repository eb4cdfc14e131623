package query

import (
	"fmt"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
)

var (
	reads = []rpc.Role{rpc.RoleReader}
	sees  = []rpc.Role{rpc.RoleReader, rpc.RoleOperator}
	nodes = []rpc.Role{rpc.RoleWorker}
)

// access: samples are for readers; operators see how complete they are. Query nodes of other regions say for whom they ask, and
// get what that principal may see (authorizeFor).
var access = rpc.Access{
	queryv1.QueryService_Query_FullMethodName:         reads,
	queryv1.QueryService_QueryRange_FullMethodName:    reads,
	queryv1.QueryService_ListAgents_FullMethodName:    sees,
	queryv1.QueryService_ListConflicts_FullMethodName: sees,
	queryv1.RegionService_Read_FullMethodName:         nodes,
}

// What a query node of another region may ask for.
var (
	samplesFor = rpc.Access{queryv1.RegionService_Read_FullMethodName: reads}
	listsFor   = rpc.Access{queryv1.RegionService_Read_FullMethodName: sees}
)

// authorizeFor checks that the principal for which another region asks may have what it asks for. The roles are those that
// the other region gave it: whoever may call Read is believed, as it may read frames as well. A restriction that this node
// does not know is refused, since nobody would keep it.
func authorizeFor(c *queryv1.Caller, may rpc.Access) error {
	if len(c.GetRestrictions()) > 0 {
		return rpc.Failure{Code: codes.PermissionDenied, Reason: rpc.ReasonForbidden,
			Message: fmt.Sprintf("principal %.64q has a restriction that this region does not know: %.64q", c.GetPrincipal(), c.GetRestrictions()[0])}.Err()
	}
	p := rpc.Principal{Name: c.GetPrincipal()}
	for _, r := range c.GetRoles() {
		p.Roles = append(p.Roles, rpc.Role(r))
	}
	return may.Authorize(p, queryv1.RegionService_Read_FullMethodName)
}
