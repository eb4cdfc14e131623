package rpc

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/internal/platform/web"
)

// Role is what a principal may do.
type Role = web.Role

// The roles. A principal may have several; none implies another.
const (
	RoleSender   = web.RoleSender
	RoleReader   = web.RoleReader
	RoleOperator = web.RoleOperator
	RoleWorker   = web.RoleWorker
)

// Access has the roles of each method (/package.Service/Method), of which one is enough. Each
// service hands in its own; a method that is in no Access cannot be called by anybody.
type Access map[string][]Role

// common has the methods of every gRPC server. Health is open, since probes have no credentials.
// Reflection shows the API's descriptors to every caller with any role.
var common = Access{
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      web.Roles(),
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": web.Roles(),

	"/grpc.channelz.v1.Channelz/GetTopChannels":   {RoleOperator},
	"/grpc.channelz.v1.Channelz/GetServers":       {RoleOperator},
	"/grpc.channelz.v1.Channelz/GetServer":        {RoleOperator},
	"/grpc.channelz.v1.Channelz/GetServerSockets": {RoleOperator},
	"/grpc.channelz.v1.Channelz/GetChannel":       {RoleOperator},
	"/grpc.channelz.v1.Channelz/GetSubchannel":    {RoleOperator},
	"/grpc.channelz.v1.Channelz/GetSocket":        {RoleOperator},
}

// roles gives the roles of a method. The map is read at each call, since a service may add methods
// until its first call.
func (a Access) roles(method string) []Role {
	if roles, ok := a[method]; ok {
		return roles
	}
	return common[method]
}

// open methods need no credentials.
func open(method string) bool { return strings.HasPrefix(method, "/grpc.health.v1.") }

// Authorize checks that the principal has a role that method needs; else it gives a
// *DeniedError.
func (a Access) Authorize(p Principal, method string) error {
	return authorize(p, method, a.roles(method))
}

// AuthorizeWorker checks that the principal may own shards as workerID by method.
func (a Access) AuthorizeWorker(p Principal, method, workerID string) error {
	if err := a.Authorize(p, method); err != nil {
		return err
	}
	// The role alone is not enough: a worker with the name of another would take over its shards.
	if !p.MayWorkAs(workerID) {
		return &DeniedError{Principal: p.Name, Method: method, Roles: []Role{RoleWorker}, Worker: workerID}
	}
	return nil
}

// AuthorizeRegion checks that the principal may act for a region by method, whose roles are checked already.
func AuthorizeRegion(p Principal, method, region string) error {
	if p.MayActFor(region) {
		return nil
	}
	return &DeniedError{Principal: p.Name, Method: method, Roles: []Role{RoleWorker}, Region: &region}
}

func authorize(p Principal, what string, need []Role) error {
	// An empty list refuses everybody: a method that nobody listed must stay closed.
	if slices.ContainsFunc(need, p.Has) {
		return nil
	}
	return &DeniedError{Principal: p.Name, Method: what, Roles: need}
}

// DeniedError: the principal is known, and may not do that.
type DeniedError struct {
	Principal string
	// Method is /package.Service/Method, or the pattern of an HTTP route.
	Method string
	// Roles of which it has none; any one is enough.
	Roles []Role
	// Worker is the name that it may not use; "" when that is not the reason.
	Worker string
	// Region that it may not act for, which may be empty; nil when that is not the reason.
	Region *string
}

func (e *DeniedError) Error() string {
	if e.Worker != "" {
		return fmt.Sprintf("principal %q may not call %s as worker %q", e.Principal, e.Method, e.Worker)
	}
	if e.Region != nil {
		return fmt.Sprintf("principal %q may not call %s for the region %q", e.Principal, e.Method, *e.Region)
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

// metadata has the content of the error for programs.
func (e *DeniedError) metadata() map[string]string {
	m := map[string]string{"principal": e.Principal, "method": e.Method, "role": e.role()}
	if e.Worker != "" {
		m["worker"] = e.Worker
	}
	if e.Region != nil {
		m["region"] = *e.Region
	}
	return m
}

func (e *DeniedError) failure() Failure {
	reason := ReasonForbidden
	if e.Region != nil {
		reason = ReasonRegionDenied
	}
	return Failure{Code: codes.PermissionDenied, Reason: reason, Message: e.Error(), Metadata: e.metadata()}
}
