package arrivals

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// TestMutantsAreCaught plants known bugs of what shards are given, and of what is said to have been given.
func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: []mutants.Mutant{
		{Name: "positions stand before the batches that they cover", File: "arrivals.go", Old: "mark{q.taken + uint64(len(q.batches)), p}", New: "mark{q.taken, p}", By: "TestPositionsStand"},
		{Name: "batches are taken beyond positions", File: "arrivals.go", Old: "		n = min(n, int(q.marks[0].n-q.taken))\n", New: "", By: "TestPositionsStand"},
		{Name: "a queue without room says nothing", File: "arrivals.go", Old: "if q.hub.queued+len(batches) > q.hub.cfg.MaxQueued {\n		q.lose()", New: "if q.hub.queued+len(batches) > q.hub.cfg.MaxQueued {\n		q.batches = nil", By: "TestAQueueWithoutRoom"},
		{Name: "what is forgotten keeps its room", File: "arrivals.go", Old: "	q.hub.queued -= len(q.batches)\n", New: "", By: "TestAQueueWithoutRoom"},
		{Name: "a queue that lost is given positions", File: "arrivals.go", Old: "			if q.lost {\n				continue\n			}\n", New: "", By: "TestAQueueWithoutRoom"},
		{Name: "an owner learns what was forgotten after everything else", File: "arrivals.go", Old: "q.batches, q.marks, q.lost = nil, nil, true", New: "q.marks, q.lost = nil, len(q.batches) == 0", By: "TestAQueueWithoutRoom|TestTheJournalWentBack"},
		{Name: "an older journal is followed on", File: "arrivals.go", Old: "		h.follower = nil\n		h.loseAll()\n", New: "", By: "TestTheJournalWentBack"},
		{Name: "queues keep what an older journal may not have", File: "arrivals.go", Old: "		h.loseAll()\n", New: "", By: "TestTheJournalWentBack"},
		{Name: "shards read from the first one's positions", File: "arrivals.go", Old: "from = journal.Earliest(from, c.from)", New: "_ = c.from", By: "TestShardsCatchUp"},
		{Name: "the last batches of a reading are not handed over", File: "arrivals.go", Old: "return of[i].add(ctx, nil, 0)", New: "return nil", By: "TestShardsCatchUp"},
		{Name: "folded files are not read", File: "arrivals.go", Old: "Fan: Fan, Folded: apply,", New: "Fan: Fan, Folded: func(context.Context, []journal.Entry) error { return nil },", By: "TestShardsCatchUp"},
		{Name: "a shard that fails ends the reading of others", File: "arrivals.go", Old: "	case <-c.ctx.Done(): // its", New: "	case <-c.ctx.Done():\n		return c.ctx.Err() // its", By: "TestShardsCatchUp"},
		{Name: "each shard reads the journal by itself", File: "arrivals.go", Old: "		h.waiting = r\n", New: "", By: "TestShardsCatchUp"},
		{Name: "hints are followed to the first segment", File: "arrivals.go", Old: "{first.Run: first.Segment}", New: "{first.Run: 0}", By: "TestHints"},
		{Name: "a hint at an unknown run is dropped", File: "arrivals.go", Old: "poll = poll || !k", New: "_ = k", By: "TestHints"},
		{Name: "polls are idle while a watch is off", File: "watch.go", Old: "if !w.on[addr] {", New: "if len(addr) == 0 {", By: "TestHints"},
		{Name: "a frame that has come is asked for again", File: "frames.go", Old: " && !t.keep.Has(b.FrameSHA256)", New: "", By: "TestFramesCome"},
		{Name: "frames of others' shards are asked for", File: "arrivals.go", Old: "func(id shard.ID) bool { return len(h.queues[id]) > 0 })", New: "func(id shard.ID) bool { return true })", By: "TestFramesCome"},
	}})
}
