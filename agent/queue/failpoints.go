package queue

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of the queue; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(append(append(failpoint.Driven("agent/queue",
	failpoint.Point{Name: "agent.queue.relocate.before", When: "the oldest segment is nearly finished; its pending entries are only there"},
	failpoint.Point{Name: "agent.queue.relocate.copied", When: "a pending entry is durable twice; the queue in memory has the old place"},
	failpoint.Point{Name: "agent.queue.relocate.after", When: "all pending entries of the oldest segment are copied; it is not removed"},
	failpoint.Point{Name: "agent.queue.cut.before", When: "a start has found damage behind the last whole record; nothing is changed"},
	failpoint.Point{Name: "agent.queue.cut.saved", When: "the damaged tail is durable in a file of its own; the segment still has it"},
	failpoint.Point{Name: "agent.queue.cut.truncated", When: "the damaged tail is cut off; the cut is not synced"},
), failpoint.Driven("agent/send",
	failpoint.Point{Name: "agent.queue.release.forgotten", When: "the reason of a held batch is removed; its frame is not"},
)...),
	failpoint.Point{Name: "agent.queue.append.before", When: "a batch has its identity; nothing is written"},
	failpoint.Point{Name: "agent.queue.append.written", When: "a batch is written and not synced"},
	failpoint.Point{Name: "agent.queue.append.synced", When: "a batch is durable; the queue in memory lacks it"},
	failpoint.Point{Name: "agent.queue.note.before", When: "an entry is finished; its note is not written"},
	failpoint.Point{Name: "agent.queue.note.written", When: "a note is written; the entry is still pending in memory"},
	failpoint.Point{Name: "agent.queue.roll.before", When: "the full segment is sealed; the next one is not created"},
	failpoint.Point{Name: "agent.queue.roll.header", When: "a new segment's header is written and not synced"},
	failpoint.Point{Name: "agent.queue.roll.synced", When: "a new segment is synced under its temporary name"},
	failpoint.Point{Name: "agent.queue.roll.renamed", When: "a new segment has its name; the directory is not synced"},
	failpoint.Point{Name: "agent.queue.roll.after", When: "a new segment is durable; nothing is in it"},
	failpoint.Point{Name: "agent.queue.reclaim.before", When: "a finished segment is not removed yet"},
	failpoint.Point{Name: "agent.queue.reclaim.removed", When: "a finished segment is removed; the directory is not synced"},
	failpoint.Point{Name: "agent.queue.hold.before", When: "a conflict is known; no file of the held batch is written"},
	failpoint.Point{Name: "agent.queue.hold.synced", When: "a file of the parked batch is synced under its temporary name"},
	failpoint.Point{Name: "agent.queue.hold.renamed", When: "a file of the parked batch has its name; the directory is not synced"},
	failpoint.Point{Name: "agent.queue.hold.durable", When: "the parked batch's files are durable; the entry is still pending"},
	failpoint.Point{Name: "agent.queue.recover.listed", When: "a start has listed the segments and removed temporary files"},
	failpoint.Point{Name: "agent.queue.recover.loaded", When: "a start has read every segment; it has not decided its boot"},
)...)
