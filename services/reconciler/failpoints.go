package reconciler

import (
	"lightmetrics.dev/lightmetrics/internal/objstore/failstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// Failpoints of a reconciler; docs/protocol/failpoints.md lists them all.
var (
	_ = failpoint.Register(
		failpoint.Point{Name: "reconciler.events.received.after", When: "a webhook's events were read; none is queued"},
		failpoint.Point{Name: "reconciler.events.answer.before", When: "a webhook's events are queued in memory; it is not answered"},
		failpoint.Point{Name: "reconciler.notify.received.after", When: "a collector's hint was read; it is not queued"},
		failpoint.Point{Name: "reconciler.work.reconciled.after", When: "derived keys are written; the ledger is not changed"},
		failpoint.Point{Name: "reconciler.work.counted.after", When: "the ledger in memory is changed; no watcher was notified"},
		failpoint.Point{Name: "reconciler.work.published.after", When: "watchers were notified; the ledger is not written"},
		failpoint.Point{Name: "reconciler.audit.listed.before", When: "a frontier audit listed every boot; what it found is not reconciled"},
		failpoint.Point{Name: "reconciler.scan.checkpoint.before", When: "a time scan ended; the checkpoint has not moved"},
		failpoint.Point{Name: "reconciler.ledger.write.before", When: "a ledger snapshot is encoded and not written"},
		failpoint.Point{Name: "reconciler.ledger.write.after", When: "a ledger snapshot was written; its ETag is not noted"},
	)
	_ = failstore.Register("reconciler", "get authority", "list boots", "list accepted", "list accepted-by-time", "get accepted",
		"head raw-blobs", "create accepted-by-blob", "create raw-blobs-by-time", "create accepted-by-time", "create intake",
		"get quarantine", "create quarantine-by-blob", "put reconcile", "get reconcile", "create reconcile", "replace reconcile")
	// Repair records are written only when the bucket has a fault, so the crash test of this package drives them.
	_ = failstore.RegisterDriven("services/reconciler", "reconciler", "create repair", "get repair", "replace repair", "delete repair")
)
