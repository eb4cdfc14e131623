package web

// Role is what a principal may do. A principal may have several; none implies another,
// so that a leaked credential is worth no more than what it was made for.
type Role string

// The roles. docs/guide/access.md has the table of what each may call.
const (
	// RoleSender writes the batches of its agents.
	RoleSender Role = "sender"
	// RoleReader queries, and sees the state of services.
	RoleReader Role = "reader"
	// RoleOperator drains, cancels and orders, and sees settings and profiles.
	RoleOperator Role = "operator"
	// RoleWorker is a service among services: it owns shards, does pending work, hints and follows.
	RoleWorker Role = "worker"
)

// Roles are all of them.
func Roles() []Role { return []Role{RoleSender, RoleReader, RoleOperator, RoleWorker} }
