package rollup

import (
	"context"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/rollups/progress"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
)

// TestWorkersReprocess: batches that no block has, although the record of the shard's progress says so, are rolled up
// when an operator asks for it; one worker dies with the request's message, and another does it.
func TestWorkersReprocess(t *testing.T) {
	w := newWorld(t, newMem())
	w.some(agentOf(0, 0), hour0, 0, 5, 0)
	w.folded() // a worker that starts reads what is not folded, whatever the record says
	f, err := journal.NewFollower(journal.FollowerConfig{Store: w.store, Authority: testAuthority,
		Segment: func(context.Context, *journal.Segment) error { return nil }, Folded: func(context.Context, []journal.Entry) error { return nil }})
	must(t, err)
	polled, err := f.Poll(t.Context())
	must(t, err)
	for id := range shard.ID(testShards) {
		_, err := progress.Progress{AuthorityID: testAuthority, Shard: id, Shards: testShards, Positions: polled.Positions}.Write(t.Context(), w.store, "")
		must(t, err)
	}
	k, _, err := reprocess.Submit(t.Context(), w.pending, w.pending, reprocess.Request{From: w.now().Add(-time.Hour), To: w.now().Add(time.Hour)})
	must(t, err)
	// Somebody takes the message, claims the job, and is never heard of again.
	ms, err := w.pending.Receive(t.Context(), reprocess.Topic, 1, time.Minute)
	if err != nil || len(ms) != 1 {
		t.Fatal(ms, err)
	}
	row, err := w.pending.Get(t.Context(), k)
	must(t, err)
	_, err = w.pending.Claim(t.Context(), row, work.Claim{Owner: "dead", Hold: time.Minute})
	must(t, err)

	s := w.start(t, testConfig(), w.store)
	eventually(t, "the shards are owned", func() bool { return len(s.Shards()) == testShards })
	eventually(t, "they have caught up", func() bool { return s.Shards()[0].Shard == "0000" && !s.Shards()[0].Behind && !s.Shards()[1].Behind })
	if w.set(hour0, 0, timegrid.OneHour) != nil {
		t.Fatal("published without a request")
	}
	w.advance(2 * time.Minute)
	eventually(t, "the request is done", func() bool {
		l, err := w.pending.Log(t.Context(), k.Log)
		return err == nil && l.Last == k.Number
	})
	eventually(t, "the hour is published", func() bool { w.advance(time.Second); return w.set(hour0, 0, timegrid.OneHour) != nil })
	w.check(hour0, 0, 1)
	if got := w.set(hour0, 0, timegrid.Raw).Inputs; got.Batches() != 5 || !got.Covers(w.accepted[0].Identity) {
		t.Errorf("inputs %+v", got)
	}
}
