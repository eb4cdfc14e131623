package spool

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of the mode local_spool; docs/protocol/failpoints.md lists them all, and
// TestCrashAtEveryFailpoint drives them.
var _ = failpoint.Register(failpoint.Driven("internal/acceptance/spool",
	failpoint.Point{Name: "ingest.spool.append.before", When: "a batch has its room in the spool; nothing is written"},
	failpoint.Point{Name: "ingest.spool.append.synced", When: "a batch is synced under its temporary name"},
	failpoint.Point{Name: "ingest.spool.append.linked", When: "a batch has its name; the directory is not synced"},
	failpoint.Point{Name: "ingest.spool.append.durable", When: "a batch is durable; the index in memory does not have it"},
	failpoint.Point{Name: "ingest.spool.ack.before", When: "a batch is in the index; the sender has no answer"},
	failpoint.Point{Name: "ingest.spool.record.synced", When: "a claim, watermark or clash is synced under its temporary name"},
	failpoint.Point{Name: "ingest.spool.record.renamed", When: "a claim, watermark or clash has its name; the directory is not synced"},
	failpoint.Point{Name: "ingest.spool.record.durable", When: "a claim, watermark or clash is durable; memory does not have it"},
	failpoint.Point{Name: "ingest.spool.rewrite.synced", When: "a damaged batch is rewritten and synced under its temporary name"},
	failpoint.Point{Name: "ingest.spool.rewrite.renamed", When: "a damaged batch is replaced; the directory is not synced"},
	failpoint.Point{Name: "ingest.spool.land.before", When: "a batch was read; it was not yet submitted to the store"},
	failpoint.Point{Name: "ingest.spool.land.after", When: "the store has decided; the spool has not recorded it"},
	failpoint.Point{Name: "ingest.spool.trim.marked", When: "watermarks are durable; the landed batches are still in the spool"},
	failpoint.Point{Name: "ingest.spool.trim.parked", When: "a lost batch has its name in conflicts; the directory is not synced"},
	failpoint.Point{Name: "ingest.spool.trim.forgotten", When: "a batch was removed from the index; its file still exists"},
	failpoint.Point{Name: "ingest.spool.trim.removed", When: "the file of a batch is removed; the directory is not synced"},
	failpoint.Point{Name: "ingest.spool.recover.cleaned", When: "a start has removed temporary files and read nothing"},
	failpoint.Point{Name: "ingest.spool.recover.loaded", When: "a start has read every file; nothing is in the index"},
	failpoint.Point{Name: "ingest.spool.recover.aside", When: "a corrupt file was moved; neither directory is synced"},
)...)
