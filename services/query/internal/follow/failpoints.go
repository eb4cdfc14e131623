package follow

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of the follower; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(
	failpoint.Point{Name: "query.watch.hint.received", When: "a reconciler's hint was read; nothing was fetched"},
	failpoint.Point{Name: "query.live.insert.before", When: "a frame is fetched and decoded; no query sees it"},
	failpoint.Point{Name: "query.live.insert.after", When: "queries see a batch; the ledger does not count it"},
	failpoint.Point{Name: "query.audit.done.before", When: "an audit ended; complete_through has not moved"},
)
