package query_test

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/catalog"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/query"
)

// counted is the number that an instant query gave, and whether the answer is marked: of
// one answer.
func (n *node) counted(expr string) (count string, marked bool) {
	n.t.Helper()
	e := n.get("/api/v1/query", "query", expr)
	if e.Status != "success" {
		n.t.Fatalf("%s: %s", expr, e.Error)
	}
	var d struct {
		Result []struct{ Value [2]any }
	}
	if err := json.Unmarshal(e.Data, &d); err != nil {
		n.t.Fatal(err)
	}
	if len(d.Result) == 0 {
		return "0", e.Lightmetrics.Partial
	}
	return fmt.Sprint(d.Result[0].Value[1]), e.Lightmetrics.Partial
}

// hourOf accepts 20 batches of an agent, 20 samples each, 20 s apart, and enters them.
func (a *authority) hourOf(agent string, h timegrid.Hour) (all []built) {
	for i := range 20 {
		var ps []point
		for k := range 20 {
			ps = append(ps, point{"c", float64(20*i + k), h.Start().Add(time.Duration(20*i+k+1) * time.Second)})
		}
		b := a.build(identity.Boot{Agent: agent, Boot: "b"}, uint64(20*i), h.End(), ps...)
		a.accept(b)
		all = append(all, b)
	}
	return all
}

// TestAgentsSetAsideAreNeverSilentlyShort: an agent that is set aside for an hour is in no block
// of it, while the others of the hour are. Its samples come from memory, or the answer is
// marked: in the window and when it has passed, of a node that ran all the time and of one
// that starts afterwards, and where memory does not hold them.
func TestAgentsSetAsideAreNeverSilentlyShort(t *testing.T) {
	a := newAuthority(t)
	a.rollups()
	h := timegrid.HourOf(time.Now().Add(-time.Hour).UnixMilli())
	good, large := a.hourOf("good", h), a.hourOf("large", h)
	var rolled []publishedtest.Batch
	for _, b := range good {
		rolled = append(rolled, b.published(t))
	}
	all := rolled
	for _, b := range large {
		all = append(all, b.published(t))
	}
	aside := catalog.Aside{AuthorityID: "test", Shard: shard.Of("large", rollupShards), Hour: h, Agent: "large", Series: 1, Records: 400, Bytes: 1 << 40, Limit: 1, Reason: "memory", By: "w", At: 1}
	a.put(aside.Key(), aside.Marshal())
	a.publish(h, 1, rolled)

	expr := "sum(count_over_time(c[20m] @ " + unix(h.Start().Add(19*time.Minute)) + "))"
	var offset atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }
	fast := func(c *query.Config) {
		c.Rollup.Poll, c.Rollup.TTL = 10*time.Millisecond, time.Millisecond
	}
	small := func(c *query.Config) { fast(c); c.History.MaxBytes = 8 << 10 }
	never := func(n *node, what string) (count string, marked bool) {
		t.Helper()
		if count, marked = n.counted(expr); count != "800" && !marked {
			t.Fatalf("%s: %s of 800 samples, and the answer is not marked", what, count)
		}
		return count, marked
	}
	whole := func(n *node, what string) {
		t.Helper()
		eventually(t, what, func() bool { count, marked := never(n, what); return count == "800" && !marked })
	}

	ran := startAt(t, a, now, fast)
	whole(ran, "in the window")
	offset.Store(int64(8 * time.Hour))
	for range 30 {
		never(ran, "the window has passed")
		time.Sleep(5 * time.Millisecond)
	}
	whole(ran, "the window has passed")
	restarted := startAt(t, a, now, fast)
	whole(restarted, "after a restart")

	cramped := startAt(t, a, now, small)
	eventually(t, "the journal is read", func() bool {
		never(cramped, "in little memory")
		select {
		case <-cramped.Complete():
			return true
		default:
			return false
		}
	})
	for range 30 {
		never(cramped, "in little memory")
		time.Sleep(5 * time.Millisecond)
	}
	if count, marked := cramped.counted(expr); count == "800" || !marked {
		t.Errorf("in little memory: %s, marked %v: nothing was evicted", count, marked)
	}

	// Released and rolled up, it is whole everywhere.
	a.publish(h, 2, all)
	for _, n := range []*node{ran, restarted, cramped} {
		whole(n, "rolled up")
	}
}

// TestHoursFromBeforeRollups: what was accepted before an authority had rollups is in the journal like
// everything else, so a late batch of such an hour is not taken for all of it: of a node that starts
// then, and of one that ran when there were no rollups.
func TestHoursFromBeforeRollups(t *testing.T) {
	h := timegrid.HourOf(time.Now().Add(-6 * time.Hour).UnixMilli())
	expr := "sum(count_over_time(c[20m] @ " + unix(h.Start().Add(19*time.Minute)) + "))"
	for _, ran := range []bool{false, true} {
		t.Run(fmt.Sprintf("ran before: %v", ran), func(t *testing.T) {
			a := newAuthority(t)
			batches := a.hourOf("host", h)
			fast := func(c *query.Config) { c.Rollup.Poll, c.Rollup.TTL = 10*time.Millisecond, time.Millisecond }
			var n *node
			if ran {
				n = start(t, a, fast)
				<-n.Complete()
				if e := n.get("/api/v1/query", "query", expr); !has(e.Lightmetrics.Reasons, "BEFORE_HISTORY") {
					t.Errorf("before the window, without rollups: %+v", e.Lightmetrics)
				}
			}
			// Rollups are switched on. Two late batches are rolled up first, as another shard's hour would be.
			var late []publishedtest.Batch
			for _, b := range batches[len(batches)-2:] {
				late = append(late, b.published(t))
			}
			a.rollups()
			a.publish(h, 1, late)
			if n == nil {
				n = start(t, a, fast)
			}
			eventually(t, "all samples", func() bool {
				count, marked := n.counted(expr)
				if count != "400" && !marked {
					t.Fatalf("%s of 400 samples, and not marked", count)
				}
				return count == "400" && !marked
			})
		})
	}
}
