package follow

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of the follower; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(
	failpoint.Point{Name: "query.watch.hint.received", When: "a hint was read; nothing was followed"},
	failpoint.Point{Name: "query.live.insert.before", When: "a frame is fetched and decoded; no query sees it"},
	failpoint.Point{Name: "query.live.insert.after", When: "queries see a batch; it is still queued"},
	failpoint.Point{Name: "query.poll.done.before", When: "a poll has read the journal; complete_through has not moved"},
)
