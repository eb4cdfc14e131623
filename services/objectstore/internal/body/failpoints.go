package body

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of body files; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(
	failpoint.Point{Name: "objectstore.body.create.after", When: "a large body's file is there and empty"},
	failpoint.Point{Name: "objectstore.body.write.after", When: "a block of a large body is written"},
	failpoint.Point{Name: "objectstore.body.sync.before", When: "a large body is written and not synced"},
	failpoint.Point{Name: "objectstore.body.rename.before", When: "a large body is synced under its temporary name"},
	failpoint.Point{Name: "objectstore.body.rename.after", When: "a large body has its name; the directory is not synced"},
	failpoint.Point{Name: "objectstore.body.durable.after", When: "a large body is durable; no record names it"},
)
