package rollup

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/series"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/owner"
	"lightmetrics.dev/lightmetrics/services/rollup/internal/ownership"
)

// While a batch of hundreds of hours is rolled up, the journal is followed: what comes
// meanwhile is known after a few hours' work, and the status says how far it is.
func TestWideBatchDoesNotHideWhatComes(t *testing.T) {
	w := newWorld(t, newMem())
	a := agentOf(1, 0)
	const hours = 5 * owner.HoursPerRound
	var ps []point
	for h := hour0 - hours + 1; h <= hour0; h++ {
		ps = append(ps, point{"load", series.Gauge, at(h, time.Minute), float64(h)})
	}
	e := w.accept(a, 0, ps...)
	svc := w.worker(testConfig(), w.store)
	o, err := w.owner(svc, ownership.Grant{Shard: 1, Fence: 5})
	must(t, err)
	again, err := o.Round(t.Context())
	must(t, err)
	svc.board.Note(o.Status())
	if st := svc.Shards()[0]; !again || st.PendingBatches != 1 || pendingHours(o) <= hours/2 {
		t.Fatalf("after a round: again %v, %d of %d hours are left, %+v", again, pendingHours(o), hours, st)
	}
	w.accept(a, e.SeqEnd+1, point{"load", series.Gauge, at(hour0, 2*time.Minute), 1})
	again, err = o.Round(t.Context())
	must(t, err)
	if !again || o.Shard.Backlog.Len() != 2 {
		t.Fatalf("after two rounds: again %v, %d batches are known", again, o.Shard.Backlog.Len())
	}
	must(t, rounds(t.Context(), o))
	if o.Shard.Backlog.Len() != 0 || len(w.left(1)) != 0 {
		t.Errorf("%d batches and %d batches are left", o.Shard.Backlog.Len(), len(w.left(1)))
	}
	w.check(hour0, 1, 1)
	w.check(hour0-hours+1, 1, 1)
}
