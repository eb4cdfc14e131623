package ingest

import (
	"lightmetrics.dev/lightmetrics/internal/objstore/failstore"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
)

// Failpoints of a collector; docs/protocol/failpoints.md lists them all.
var (
	_ = failpoint.Register(
		failpoint.Point{Name: "ingest.start.ready.before", When: "the collector listens and does not report it yet"},
		failpoint.Point{Name: "ingest.qualify.pass.before", When: "the store passed its probe; the collector accepts nothing yet"},
		failpoint.Point{Name: "ingest.stream.hello.received", When: "a hello was read; no request was sent to the store"},
		failpoint.Point{Name: "ingest.stream.welcome.before", When: "the boot is claimed; the welcome is not sent"},
		failpoint.Point{Name: "ingest.stream.frame.received", When: "a frame was read from a stream; it is not admitted"},
		failpoint.Point{Name: "ingest.stream.frame.admitted", When: "memory for a frame is reserved; nothing was decided"},
		failpoint.Point{Name: "ingest.stream.answer.before", When: "a batch is decided; its answer is not sent"},
		failpoint.Point{Name: "ingest.stream.answer.after", When: "an answer was handed to the stream"},
		failpoint.Point{Name: "ingest.http.body.received", When: "a body was read over HTTP; nothing was decided"},
		failpoint.Point{Name: "ingest.http.answer.after", When: "an answer was handed to HTTP"},
		failpoint.Point{Name: "ingest.unary.answer.before", When: "a batch of SubmitBatch is decided; its answer is not sent"},
		failpoint.Point{Name: "ingest.accept.decide.before", When: "a frame is decoded and valid; the protocol has not begun"},
		failpoint.Point{Name: "ingest.accept.decide.after", When: "the protocol ended; its outcome is not reported yet"},
		failpoint.Point{Name: "ingest.journal.segment.before", When: "a segment of the journal has its entries; it is not sent"},
		failpoint.Point{Name: "ingest.journal.segment.durable", When: "a segment of the journal is durable; no batch of it is answered"},
		failpoint.Point{Name: "ingest.notify.send.before", When: "a hint waits; no reconciler was notified"},
		failpoint.Point{Name: "ingest.notify.send.after", When: "a hint was handed to the stream to a reconciler"},
	)
	_ = failstore.Register("ingest", "get authority", "create authority", "create boots", "get boots", "list accepted",
		"create raw-blobs", "head raw-blobs", "create accepted", "get accepted", "create quarantine", "get quarantine", "get gc", "create journal")
)
