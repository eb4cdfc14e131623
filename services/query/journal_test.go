package query_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/queries/published/publishedtest"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query"
)

func fastBlocks(c *query.Config) { c.Rollup.Poll, c.Rollup.TTL = 10*time.Millisecond, time.Millisecond }

// TestNothingIsMissingAfterAnOutageOfTheReconcilers: while no reconciler runs, batches are accepted, and their hour is
// published without them. A query node that starts when the hour has left the window has them all the
// same: what was answered is in the journal, and what blocks lack is read into memory.
func TestNothingIsMissingAfterAnOutageOfTheReconcilers(t *testing.T) {
	a := newAuthority(t)
	a.rollups()
	h := timegrid.HourOf(time.Now().Add(-4 * time.Hour).UnixMilli())
	batches := a.hourOf("host", h) // no derived object is written of any of them
	var known []publishedtest.Batch
	for _, b := range batches[:10] {
		known = append(known, b.published(t))
	}
	a.publish(h, 1, known)
	n := start(t, a, fastBlocks)
	expr := "sum(count_over_time(c[20m] @ " + unix(h.Start().Add(19*time.Minute)) + "))"
	eventually(t, "all samples", func() bool {
		count, marked := n.counted(expr)
		if count != "400" && !marked {
			t.Fatalf("%s of 400 samples, and the answer is not marked", count)
		}
		return count == "400" && !marked
	})
}

// TestCompleteThroughIsTheStoresTime: neither the clock of the node nor those of collectors take part in what is
// complete.
func TestCompleteThroughIsTheStoresTime(t *testing.T) {
	for _, off := range []time.Duration{-90 * time.Minute, 90 * time.Minute} {
		store := mem.New(func() time.Time { return time.Now().Add(off) })
		a := &authority{t: t, Store: store}
		a.put(layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "test"}.Marshal())
		if err := journaltest.Complete(context.Background(), store, "test"); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		a.accept(a.build(host, 1, now.Add(24*time.Hour), point{"up", 1, now})) // its collector's clock is a day ahead
		before := time.Now().Add(off - 2*time.Second)
		n := start(t, a, nil)
		<-n.Complete()
		n.polls(3)
		e := n.get("/api/v1/query", "query", "up")
		through, err := time.Parse(time.RFC3339Nano, e.Lightmetrics.CompleteThrough)
		if err != nil || e.Lightmetrics.Partial || e.value() != "1" || through.Before(before) || through.After(time.Now().Add(off)) {
			t.Errorf("the store is off by %s: complete through %s (%v), %+v", off, through, err, e.Lightmetrics)
		}
	}
}

// TestFarAheadSurvivesARestart: a batch two hours ahead of now is in a block of its hour, and is read there whatever
// the node has in memory.
func TestFarAheadSurvivesARestart(t *testing.T) {
	a := newAuthority(t)
	a.rollups()
	now := time.Now()
	at := now.Add(2 * time.Hour)
	var ps []point
	for i := range 100 {
		ps = append(ps, point{"c", float64(i), at.Add(time.Duration(i) * time.Millisecond)})
	}
	b := a.build(host, 1, now, ps...)
	a.accept(b)
	for _, h := range publishedtest.Hours([]publishedtest.Batch{b.published(t)}) {
		a.publish(h, 1, []publishedtest.Batch{b.published(t)})
	}
	a.progressed()
	n := start(t, a, fastBlocks)
	<-n.Complete()
	if n.number("lightmetrics_query_live_batches") != 0 {
		t.Error("the batch is in memory, so that nothing is tested")
	}
	expr := "sum(count_over_time(c[10m] @ " + unix(at.Add(5*time.Minute)) + "))"
	if count, marked := n.counted(expr); count != "100" || marked {
		t.Errorf("%s of 100 samples, marked %v", count, marked)
	}
	// Blocks beyond all that is read are told.
	far := timegrid.HourOf(now.AddDate(1, 0, 0).UnixMilli())
	fb := a.build(host, 1000, now, point{"c", 1, far.Start().Add(time.Minute)})
	a.accept(fb)
	a.publish(far, 1, []publishedtest.Batch{fb.published(t)})
	eventually(t, "the block is seen", func() bool {
		e := n.get("/api/v1/query", "query", "c", "time", unix(far.Start().Add(2*time.Minute)))
		return has(e.Lightmetrics.Reasons, "BEFORE_HISTORY")
	})
	if count, marked := n.counted(expr); count != "100" || marked {
		t.Errorf("%s of 100 samples, marked %v", count, marked)
	}
}

// TestJournalThatIsIncompleteIsTold: a bucket of the former layout may have batches that no entry names, until an
// audit has written them. Until then every answer is partial, and nothing is complete.
func TestJournalThatIsIncompleteIsTold(t *testing.T) {
	a := &authority{t: t, Store: mem.New(time.Now)}
	a.put(layout.AuthorityKey, accept.AuthorityRecord{AuthorityID: "test"}.Marshal())
	now := time.Now()
	b := a.build(host, 1, now, point{"up", 1, now})
	a.put(b.manifest.RawBlobKey, b.frame)
	a.put(layout.Accepted(b.manifest.Identity), b.manifest.Marshal())
	n := start(t, a, nil)
	<-n.Complete()
	if e := n.get("/api/v1/query", "query", "up"); !has(e.Lightmetrics.Reasons, "JOURNAL_INCOMPLETE") || e.Lightmetrics.CompleteThrough != "" {
		t.Errorf("%+v", e.Lightmetrics)
	}
	if n.number(`lightmetrics_query_partial_reasons_total{reason="JOURNAL_INCOMPLETE"}`) == 0 {
		t.Error("the reason is not counted")
	}
	if err := journaltest.Manifests(t.Context(), a.Store, "test"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a whole answer", func() bool {
		e := n.get("/api/v1/query", "query", "up")
		if !e.Lightmetrics.Partial && e.value() != "1" {
			t.Fatalf("complete without the batch: %+v", e.Lightmetrics)
		}
		return !e.Lightmetrics.Partial
	})
}

// TestMarksOfEvictedBatchesGoWithTheirRollup: whatever was evicted, and however much, answers are whole as soon as
// blocks hold it; no restart is needed.
func TestMarksOfEvictedBatchesGoWithTheirRollup(t *testing.T) {
	a := newAuthority(t)
	a.rollups()
	now := time.Now()
	h := timegrid.HourOf(now.Add(-30 * time.Minute).UnixMilli())
	var all []built
	var rolled []publishedtest.Batch
	// Boots without a pattern: no two of their batches follow each other.
	for i := range 400 {
		boot := identity.Boot{Agent: fmt.Sprintf("agent%03d", i%200), Boot: "b"}
		b := a.build(boot, uint64(1+10*i), now, point{"c", float64(i), h.Start().Add(time.Duration(i+1) * 8 * time.Second)})
		all = append(all, b)
		rolled = append(rolled, b.published(t))
	}
	a.accept(all...)
	var offset atomic.Int64
	n := startAt(t, a, func() time.Time { return time.Now().Add(time.Duration(offset.Load())) }, func(c *query.Config) {
		fastBlocks(c)
		c.History.MaxBytes, c.History.AgentShare = 24<<10, 100
	})
	<-n.Complete()
	expr := func(i int) string {
		return fmt.Sprintf("sum(count_over_time(c[%dm] @ %s))", 1+i%50, unix(h.Start().Add(time.Duration(i)*24*time.Second)))
	}
	marked := 0
	for i := range 150 {
		if _, partial := n.counted(expr(i)); partial {
			marked++
		}
	}
	if marked < 20 {
		t.Fatalf("%d of 150 expressions are marked: too little was evicted", marked)
	}
	offset.Store(int64(3 * time.Hour))
	a.publish(h, 1, rolled)
	eventually(t, "whole answers", func() bool { _, partial := n.counted(expr(149)); return !partial })
	for i := range 150 {
		if count, partial := n.counted(expr(i)); partial {
			t.Errorf("%s: %s, still marked", expr(i), count)
		}
	}
}

// TestAStartCostsWhatIsNotRolledUp: the requests of a start follow what is not in blocks, and the ledgers' parts; they
// are the same after four and sixteen times as many batches of the past.
func TestAStartCostsWhatIsNotRolledUp(t *testing.T) {
	now := time.Now()
	cost := func(batches int) (string, int) {
		a := newAuthority(t)
		a.rollups()
		old := timegrid.HourOf(now.Add(-20 * time.Hour).UnixMilli()).Start()
		var all []built
		for i := range batches {
			at := old.Add(time.Duration(i) * time.Second / 4)
			all = append(all, a.build(identity.Boot{Agent: fmt.Sprint("agent", i%10), Boot: "b"}, uint64(i), at, point{"c", 1, at}))
		}
		for i := 0; i < len(all); i += 50 { // runs of many collectors
			a.accept(all[i : i+50]...)
		}
		a.progressed(all[7])
		var fresh []built
		for i := range 5 {
			fresh = append(fresh, a.build(host, uint64(i), now, point{"up", 1, now.Add(time.Duration(i-5) * time.Second)}))
		}
		a.accept(fresh...)
		n, c := startCounted(t, a, true)
		e := n.get("/api/v1/query", "query", "sum(count_over_time(up[1m]))")
		if e.value() != "5" || e.Lightmetrics.Partial {
			t.Errorf("%s: %+v", e.value(), e.Lightmetrics)
		}
		resp, err := client(t, n).ListAgents(t.Context(), &queryv1.ListAgentsRequest{PageSize: 1000})
		if err != nil || len(resp.GetAgents()) != 11 {
			t.Errorf("%d agents, %v", len(resp.GetAgents()), err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Sprint(c.gets), c.gets["raw-blobs"]
	}
	few, frames := cost(200)
	if frames != 6 {
		t.Errorf("%d frames are fetched, want the five that are new and the one that is pending", frames)
	}
	for _, n := range []int{800, 3200} {
		if many, _ := cost(n); many != few {
			t.Errorf("%d batches cost %s, 200 batches %s", n, many, few)
		}
	}
	t.Log(few)
}
