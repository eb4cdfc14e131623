package reconciler

import (
	"lightmetrics.dev/lightmetrics/internal/objstore/failstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// Failpoints of a reconciler; docs/protocol/failpoints.md lists them all.
var (
	_ = failpoint.Register(
		failpoint.Point{Name: "reconciler.notify.received.after", When: "a hint at a segment of the journal was read; it is not queued"},
		failpoint.Point{Name: "reconciler.work.reconciled.after", When: "derived keys are written; the pass is not counted"},
		failpoint.Point{Name: "reconciler.ledgers.save.before", When: "the ledgers are to be saved"},
		failpoint.Point{Name: "reconciler.ledgers.save.after", When: "the ledgers were saved"},
	)
	_ = failstore.Register("reconciler", "get authority", "get accepted",
		"head raw-blobs", "create accepted-by-blob", "create raw-blobs-by-time", "create accepted-by-time",
		"get quarantine", "create quarantine-by-blob", "get reconcile", "create reconcile", "replace reconcile")
	// Claims are there only with several regions, so the crash test of this package drives them too.
	_ = failpoint.Register(failpoint.Driven("services/reconciler",
		failpoint.Point{Name: "reconciler.claims.complete.before", When: "a claim of this region has its manifest and its frame; it is not durable"},
		failpoint.Point{Name: "reconciler.claims.journal.before", When: "claims of this region are durable; the journal does not have them"},
		failpoint.Point{Name: "reconciler.claims.settle.before", When: "the journal has a batch; its claim is not settled"},
	)...)
	// Repair records are written only when the bucket has a fault, so the crash test of this package drives them.
	_ = failstore.RegisterDriven("services/reconciler", "reconciler", "create repair", "get repair", "replace repair", "delete repair")
)
