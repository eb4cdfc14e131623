package web

// Role is what a principal may do. A principal may have several. None implies another, so that a
// leaked credential allows no more than it was made for.
type Role string

// The roles. docs/guide/access.md has the table of what each may call.
const (
	// RoleSender writes the batches of its agents.
	RoleSender Role = "sender"
	// RoleReader queries, and sees the state of services.
	RoleReader Role = "reader"
	// RoleOperator drains, cancels and requests repairs, and sees settings and profiles.
	RoleOperator Role = "operator"
	// RoleWorker is for services that call services: they own shards, do pending work, and send and
	// follow hints.
	RoleWorker Role = "worker"
)

// Roles lists all roles.
func Roles() []Role { return []Role{RoleSender, RoleReader, RoleOperator, RoleWorker} }
