package rpc

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
)

// Role is what a principal may do beside writing the batches of its agents.
type Role string

// The roles. A principal may have several; none implies another.
const (
	// RoleWorker owns shards, does pending work and keeps reference sets.
	RoleWorker Role = "worker"
	// RoleOperator drains workers, cancels and orders jobs, and sees everything.
	RoleOperator Role = "operator"
	// RoleReader sees shards, workers, jobs and references.
	RoleReader Role = "reader"
	// anybody is no role of a file: every principal may, as far as the service itself lets it.
	anybody Role = "*"
)

var roles = []Role{RoleWorker, RoleOperator, RoleReader}

var (
	works    = []Role{RoleWorker}
	operates = []Role{RoleOperator}
	acts     = []Role{RoleWorker, RoleOperator}
	reads    = []Role{RoleReader, RoleOperator}
	sees     = []Role{RoleReader, RoleOperator, RoleWorker}
	free     = []Role{anybody}
)

// allowed is the one table: of these roles one is enough for the method. What is not in
// it is nobody's.
var allowed = map[string]map[string][]Role{
	"lightmetrics.coordinator.v1.OwnershipService": {
		"Own": works, "Drain": operates,
		"ListShards": reads, "ListWorkers": reads, "ListMoves": reads,
	},
	"lightmetrics.coordinator.v1.WorkService": {
		"SendMessage": acts, "ReceiveMessages": works, "ReturnMessage": works, "DeleteMessage": works,
		"ListDeadLetters": sees, "GetDepth": sees, "RedriveDeadLetter": operates,
		"CreateJob": acts, "ClaimJob": acts, "CheckpointJob": acts, "ReleaseJob": acts, "TouchJob": acts, "CompleteJob": acts,
		"GetJob": sees, "ListJobs": sees, "GetLog": sees, "ListLogs": sees, "ForgetLog": acts,
	},
	"lightmetrics.coordinator.v1.RefsService": {
		"FoundRefs": works, "AddRefs": works, "SwapRefRecord": works, "DeleteRefRecord": works,
		"GetFounding": sees, "GetRefRecord": sees, "ListRefRecords": sees,
	},
	// The collector asks whether the principal may write the agent's batches.
	"lightmetrics.ingest.v1.IngestService": {"StreamBatches": free, "SubmitBatch": free},
	// Hints and reads: nothing is decided by them.
	"lightmetrics.reconciler.v1.ReconcilerService": {"NotifyAccepted": free, "WatchAccepted": free, "ListLedgers": free, "GetStatus": free},
	"lightmetrics.query.v1.QueryService":           {"Query": free, "QueryRange": free, "ListAgents": free, "ListConflicts": free},
	"grpc.channelz.v1.Channelz": {
		"GetTopChannels": operates, "GetServers": operates, "GetServer": operates, "GetServerSockets": operates,
		"GetChannel": operates, "GetSubchannel": operates, "GetSocket": operates,
	},
}

// DeniedError: the principal is known, and may not do that.
type DeniedError struct {
	Principal string
	// Method is /package.Service/Method.
	Method string
	// Roles of which it has none; any one is enough.
	Roles []Role
	// Worker is the name that it may not use; "" when that is not the reason.
	Worker string
}

func (e *DeniedError) Error() string {
	if e.Worker != "" {
		return fmt.Sprintf("principal %q may not call %s as worker %q", e.Principal, e.Method, e.Worker)
	}
	if len(e.Roles) == 0 {
		return fmt.Sprintf("principal %q may not call %s: nobody may", e.Principal, e.Method)
	}
	return fmt.Sprintf("principal %q may not call %s: needs the role %s", e.Principal, e.Method, e.role())
}

func (e *DeniedError) role() string {
	names := make([]string, len(e.Roles))
	for i, r := range e.Roles {
		names[i] = string(r)
	}
	return strings.Join(names, " or ")
}

func (e *DeniedError) failure() Failure {
	f := Failure{Code: codes.PermissionDenied, Reason: ReasonForbidden, Message: e.Error(),
		Metadata: map[string]string{"principal": e.Principal, "method": e.Method, "role": e.role()}}
	if e.Worker != "" {
		f.Metadata["worker"] = e.Worker
	}
	return f
}

// Authorize checks that the principal has a role that method (/package.Service/Method)
// needs; else it gives a *DeniedError.
func Authorize(p Principal, method string) error {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	need := allowed[service][name]
	for _, r := range need {
		if r == anybody || slices.Contains(p.Roles, r) {
			return nil
		}
	}
	return &DeniedError{Principal: p.Name, Method: method, Roles: need}
}

// AuthorizeWorker checks that the principal may own shards as workerID by method.
func AuthorizeWorker(p Principal, method, workerID string) error {
	if err := Authorize(p, method); err != nil {
		return err
	}
	if !p.MayWorkAs(workerID) {
		return &DeniedError{Principal: p.Name, Method: method, Roles: works, Worker: workerID}
	}
	return nil
}
