package engine

import "lightmetrics.dev/lightmetrics/internal/platform/failpoint"

// Failpoints of the engine; docs/protocol/failpoints.md lists them all.
var _ = failpoint.Register(
	failpoint.Point{Name: "objectstore.open.index.before", When: "a start has opened the segments and not the index"},
	failpoint.Point{Name: "objectstore.open.replay.before", When: "a start has opened the index; it may be behind the log"},
	failpoint.Point{Name: "objectstore.open.sweep.before", When: "a start has replayed the log; body files that no record names are still there"},
	failpoint.Point{Name: "objectstore.commit.decided", When: "the conditions of a batch are decided; nothing is written"},
	failpoint.Point{Name: "objectstore.log.write.before", When: "a batch's records are encoded and not written"},
	failpoint.Point{Name: "objectstore.log.sync.before", When: "a batch's records are written and not synced"},
	failpoint.Point{Name: "objectstore.log.sync.after", When: "a batch's records are durable; the index lacks them"},
	failpoint.Point{Name: "objectstore.log.roll.before", When: "the segment is full; the next one is not created"},
	failpoint.Point{Name: "objectstore.log.roll.header", When: "a new segment's header is written and not synced"},
	failpoint.Point{Name: "objectstore.log.roll.after", When: "a new segment is durable; nothing uses it"},
	failpoint.Point{Name: "objectstore.index.apply.before", When: "a batch is durable in the log and not in the index"},
	failpoint.Point{Name: "objectstore.index.apply.after", When: "a batch is in the index, unsynced; readers may see it"},
	failpoint.Point{Name: "objectstore.index.flush.before", When: "reclaimed records are copied; the index is not flushed"},
	failpoint.Point{Name: "objectstore.index.flush.after", When: "the index is flushed; the old segment is still there"},
	failpoint.Point{Name: "objectstore.commit.answer.before", When: "a batch is done; no caller has its answer"},
	failpoint.Point{Name: "objectstore.put.answer.before", When: "a PUT is done; it is not answered"},
	failpoint.Point{Name: "objectstore.delete.submit.before", When: "a DELETE is read and not decided"},
	failpoint.Point{Name: "objectstore.delete.answer.before", When: "a DELETE is done; it is not answered"},
	failpoint.Point{Name: "objectstore.body.remove.before", When: "an object is overwritten or deleted; the old body's file is still there"},
	failpoint.Point{Name: "objectstore.segment.stub.before", When: "the body of a segment is read back; its stub is not written", Test: "services/objectstore"},
	failpoint.Point{Name: "objectstore.segment.rename.before", When: "a segment's stub is durable under its temporary name; the segment is still there", Test: "services/objectstore"},
	failpoint.Point{Name: "objectstore.segment.rename.after", When: "a stub has the name of its segment; the directory is not synced", Test: "services/objectstore"},
	failpoint.Point{Name: "objectstore.segment.settled", When: "a stub has taken its segment's place durably; copies of the segment are gone", Test: "services/objectstore"},
	failpoint.Point{Name: "objectstore.segment.drop.before", When: "a stub is gone, reclaimed; the body of its segment is still there", Test: "services/objectstore"},
	failpoint.Point{Name: "objectstore.reclaim.begin.before", When: "a segment was chosen; nothing is copied"},
	failpoint.Point{Name: "objectstore.reclaim.copy.before", When: "a live record is read and not copied"},
	failpoint.Point{Name: "objectstore.reclaim.copy.after", When: "every live record is copied; the index is not flushed"},
	failpoint.Point{Name: "objectstore.reclaim.drop.before", When: "the index is flushed; the segment is still in use"},
	failpoint.Point{Name: "objectstore.reclaim.remove.before", When: "nothing uses the segment; its file is still there"},
)
