package notify

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of webhooks; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(
	failpoint.Point{Name: "objectstore.webhook.post.before", When: "events are encoded and not sent"},
	failpoint.Point{Name: "objectstore.webhook.post.after", When: "events were answered; the position has not moved"},
	failpoint.Point{Name: "objectstore.webhook.cursor.before", When: "the position moved in memory and is not written"},
	failpoint.Point{Name: "objectstore.webhook.cursor.written", When: "the position is written to a temporary file and not synced"},
	failpoint.Point{Name: "objectstore.webhook.cursor.synced", When: "the position is synced under its temporary name"},
	failpoint.Point{Name: "objectstore.webhook.cursor.after", When: "the position is saved"},
)
