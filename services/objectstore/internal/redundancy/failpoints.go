package redundancy

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Moments of the keeper's work at which a test may end the process.
var _ = failpoint.Register(failpoint.Driven("services/objectstore",
	failpoint.Point{Name: "objectstore.redundancy.step.before", When: "a step of a body's plan is decided and not begun"},
	failpoint.Point{Name: "objectstore.redundancy.make.begun", When: "the ledger says that files are being written; none is"},
	failpoint.Point{Name: "objectstore.redundancy.make.written", When: "files are durable on their places; the ledger does not say so"},
	failpoint.Point{Name: "objectstore.redundancy.read.begun", When: "the ledger says that a file is being read back"},
	failpoint.Point{Name: "objectstore.redundancy.read.done", When: "a file was read back; the ledger does not say so"},
	failpoint.Point{Name: "objectstore.redundancy.shift.written", When: "a file is durable at a second place; the ledger names the first"},
	failpoint.Point{Name: "objectstore.redundancy.shift.named", When: "the ledger names the second place; the file is at both"},
	failpoint.Point{Name: "objectstore.redundancy.drop.said", When: "the ledger says that a file is to go; it is there"},
	failpoint.Point{Name: "objectstore.redundancy.remove.gone", When: "a file is gone; its row is there"},
	failpoint.Point{Name: "objectstore.redundancy.body.done", When: "all steps of a body are done; its message is there"},
)...)
