package batch

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of the batcher; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(
	failpoint.Point{Name: "agent.batch.close.before", When: "a batch is closed; it has no numbers"},
	failpoint.Point{Name: "agent.batch.close.after", When: "a batch is in the queue; the next has not begun"},
)
