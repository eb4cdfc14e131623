package rollup

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/coordination/reprocess"
	"lightmetrics.dev/lightmetrics/internal/coordination/work"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/pkg/series"
)

// TestWorkersReprocess: batches that no intake names are rolled up when an operator asks
// for it; one worker dies with the request's message, and another does it.
func TestWorkersReprocess(t *testing.T) {
	w := newWorld(t, newMem())
	var seq uint64
	for i := range 5 {
		e := w.acceptSilently(agentOf(0, 0), seq, point{"load", series.Gauge, at(hour0, time.Duration(i+1)*time.Minute), float64(i)})
		seq = e.SeqEnd + 1
		m := accept.Manifest{AuthorityID: testAuthority, Identity: e.Identity, FrameSHA256: e.FrameSHA256, FrameBytes: e.FrameBytes, RawBlobKey: e.RawBlobKey,
			AcceptedAt: e.AcceptedAt, CollectorID: "c", WireVersion: 1, FrameVersion: 1, AttemptID: "00000000000000000000000000000000", RecordCount: 1, MinTime: e.MinTime, MaxTime: e.MaxTime}
		_, err := w.store.Create(t.Context(), layout.AcceptedByTime(time.Unix(0, e.AcceptedAt), e.Identity), m.Marshal(), objstore.PutOptions{})
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
	if w.set(hour0, 0, timegrid.OneHour) != nil {
		t.Fatal("published without a request")
	}
	w.advance(2 * time.Minute)
	eventually(t, "the request is done", func() bool {
		l, err := w.pending.Log(t.Context(), k.Log)
		return err == nil && l.Last == k.Number
	})
	eventually(t, "the hour is published", func() bool { return w.set(hour0, 0, timegrid.OneHour) != nil })
	w.check(hour0, 0, 1)
	if got := w.set(hour0, 0, timegrid.Raw).Inputs; got.Batches() != 5 || !got.Covers(identity.Batch{Agent: agentOf(0, 0), Boot: "b", SeqStart: 0, SeqEnd: 0}) {
		t.Errorf("inputs %+v", got)
	}
}
