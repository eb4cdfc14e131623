package query_test

import (
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/query"
)

func (b built) published(t *testing.T) publishedtest.Batch {
	t.Helper()
	own := &frame.Batch{}
	if err := frame.Decode(b.frame, own, frame.Limits{}); err != nil {
		t.Fatal(err)
	}
	return publishedtest.Batch{Frame: own, AcceptedAt: b.manifest.AcceptedAt}
}

// TestEvictedBeforeItsRollup: a batch that was evicted for memory inside the window, and is
// in no block when its samples have left it, still marks the answers that need them; until a
// block holds it.
func TestEvictedBeforeItsRollup(t *testing.T) {
	a := newAuthority(t)
	a.rollups()
	now := time.Now()
	h := timegrid.HourOf(now.Add(-30 * time.Minute).UnixMilli())
	at := h.Start().Add(20 * time.Minute)
	record := func(agent string, value float64) built {
		var ps []point
		for i := range 20 {
			ps = append(ps, point{"c", value + float64(i), at.Add(time.Duration(i) * time.Second)})
		}
		return a.build(identity.Boot{Agent: agent, Boot: "b"}, 1, at, ps...)
	}
	rolled, evicted := record("rolled", 0), record("evicted", 100)
	a.accept(rolled)
	a.accept(evicted)
	a.publish(h, 1, []publishedtest.Batch{rolled.published(t)})

	var offset atomic.Int64
	n := startAt(t, a, func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }, func(c *query.Config) {
		c.History.MaxBytes, c.History.AgentShare = 32<<10, 100
		c.Rollup.Poll, c.Rollup.TTL = 20*time.Millisecond, time.Millisecond
	})
	<-n.Complete()
	for i := range 120 {
		a.accept(a.build(host, uint64(i+1), now, point{"up", 1, now.Add(time.Duration(i) * time.Millisecond)}))
	}
	sum := "sum(count_over_time(c[5m] @ " + unix(at.Add(4*time.Minute)) + "))"
	marked := func() bool { return has(n.get("/api/v1/query", "query", sum).Lightmetrics.Reasons, "MEMORY_BOUND") }
	eventually(t, "the batch is evicted", func() bool { return n.value(sum) == "20" && marked() })

	offset.Store(int64(5 * time.Hour))
	n.polls(3)
	for range 5 {
		if got := n.value(sum); got == "20" && !marked() {
			t.Fatal("20 of 40 records, and not marked")
		}
		time.Sleep(30 * time.Millisecond)
	}
	a.publish(h, 2, []publishedtest.Batch{rolled.published(t), evicted.published(t)})
	eventually(t, "a whole answer", func() bool {
		return n.value(sum) == "40" && !n.get("/api/v1/query", "query", sum).Lightmetrics.Partial
	})
}
