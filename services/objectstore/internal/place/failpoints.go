package place

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of the files of local places; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(failpoint.Driven("services/objectstore",
	failpoint.Point{Name: "objectstore.place.create.after", When: "a file of a place is there and empty"},
	failpoint.Point{Name: "objectstore.place.write.after", When: "bytes of a file of a place are written"},
	failpoint.Point{Name: "objectstore.place.sync.before", When: "a file of a place is written and not synced"},
	failpoint.Point{Name: "objectstore.place.rename.before", When: "a file of a place is synced under its temporary name"},
	failpoint.Point{Name: "objectstore.place.rename.after", When: "a file of a place has its name; the folder is not synced"},
	failpoint.Point{Name: "objectstore.place.durable.after", When: "a file of a place is durable"},
)...)
