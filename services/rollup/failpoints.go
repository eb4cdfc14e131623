package rollup

import (
	"lightmetrics.dev/lightmetrics/internal/objstore/failstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// Failpoints of a rollup worker; docs/protocol/failpoints.md lists them all. Its crash
// test fails every request of a whole job in turn.
var (
	_ = failpoint.Register(failpoint.Driven("services/rollup",
		failpoint.Point{Name: "rollup.job.planned.after", When: "a generation's plan is in the store; nothing is made of it"},
		failpoint.Point{Name: "rollup.helps.written.after", When: "the helps of the frames of a job are in their record; nothing of these frames is published"},
		failpoint.Point{Name: "rollup.delta.written.after", When: "a delta is in the store; nothing knows of it yet"},
		failpoint.Point{Name: "rollup.job.published.after", When: "a resolution of a generation is committed; the next one is not begun"},
	)...)
	_ = failstore.RegisterDriven("services/rollup", "rollup", "get rollup", "create rollup", "get raw-blobs", "create manifests", "get manifests",
		"create index", "replace rollup", "get journal")
)
