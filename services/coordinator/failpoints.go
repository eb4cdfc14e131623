package coordinator

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// points of a coordinator; docs/protocol/failpoints.md lists them all.
var points = failpoint.Register(failpoint.Driven("services/coordinator",
	failpoint.Point{Name: "coordinator.leader.elected.after", When: "the election is won and a term taken; nothing is written under it"},
	failpoint.Point{Name: "coordinator.identity.open.before", When: "the epoch of the identity linearizer is filled; nothing is answered in it"},
	failpoint.Point{Name: "coordinator.session.lease.after", When: "a worker's lease is granted; its session is not written"},
	failpoint.Point{Name: "coordinator.session.begin.after", When: "a session is written, or found again; the worker does not know"},
	failpoint.Point{Name: "coordinator.session.end.after", When: "a session and its grants are gone; the worker was not told"},
	failpoint.Point{Name: "coordinator.assign.write.before", When: "a new assignment is decided; it is not written"},
	failpoint.Point{Name: "coordinator.assign.write.after", When: "a new assignment is written; nothing is granted by it"},
	failpoint.Point{Name: "coordinator.grant.write.after", When: "grants are written; nobody was told"},
	failpoint.Point{Name: "coordinator.renew.answer.before", When: "a lease is renewed; the worker was not told"},
	failpoint.Point{Name: "coordinator.revoke.send.before", When: "a shard should move; its owner was not told"},
	failpoint.Point{Name: "coordinator.release.write.after", When: "a grant is deleted; the shard is not granted again yet"},
	failpoint.Point{Name: "coordinator.drain.write.after", When: "a session is marked as draining; nothing is assigned"},
)...)
