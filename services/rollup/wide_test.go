package rollup

import (
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

// While a batch of hundreds of hours is rolled up, the intake is followed: what comes
// meanwhile is known after a few hours' work, and the status says how far it is.
func TestWideBatchDoesNotHideWhatComes(t *testing.T) {
	w := newWorld(t, newMem())
	a := agentOf(1, 0)
	const hours = 5 * hoursAtOnce
	var ps []point
	for h := hour0 - hours + 1; h <= hour0; h++ {
		ps = append(ps, point{"load", series.Gauge, at(h, time.Minute), float64(h)})
	}
	e := w.accept(a, 0, ps...)
	svc := w.worker(testConfig(), w.store)
	o, err := w.owner(svc, Grant{Shard: 1, Fence: 5})
	must(t, err)
	again, err := o.round(t.Context())
	must(t, err)
	svc.note(o)
	if st := svc.Shards()[0]; !again || st.PendingBatches != 1 || len(o.log.hours) <= hours/2 {
		t.Fatalf("after a round: again %v, %d of %d hours are left, %+v", again, len(o.log.hours), hours, st)
	}
	w.accept(a, e.SeqEnd+1, point{"load", series.Gauge, at(hour0, 2*time.Minute), 1})
	again, err = o.round(t.Context())
	must(t, err)
	if !again || len(o.log.batches) != 2 {
		t.Fatalf("after two rounds: again %v, %d batches are known", again, len(o.log.batches))
	}
	must(t, rounds(t.Context(), o))
	if len(o.log.batches) != 0 || len(w.left(1)) != 0 {
		t.Errorf("%d batches and %d segments are left", len(o.log.batches), len(w.left(1)))
	}
	w.check(hour0, 1, 1)
	w.check(hour0-hours+1, 1, 1)
}
