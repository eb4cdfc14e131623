package query_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/accept"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query"
)

func has(list []string, code string) bool {
	for _, s := range list {
		if strings.Contains(s, code) {
			return true
		}
	}
	return false
}

func TestLateBatchesAreFound(t *testing.T) {
	a := newAuthority(t)
	n := start(t, a, nil)
	<-n.Complete()
	if got := n.value("up"); got != "" {
		t.Fatalf("up is %q before anything was accepted", got)
	}
	now := time.Now()
	a.accept(a.build(host, 1, now, point{"up", 1, now}))
	eventually(t, "the first batch", func() bool { return n.value("sum(up)") == "1" })
	a.accept(a.build(identity.Boot{Agent: "host2", Boot: "x"}, 7, now, point{"up", 1, now}))
	eventually(t, "another boot", func() bool { return n.value("sum(up)") == "2" })
}

func TestEachSequenceNumberCountsOnce(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	at := func(i int) time.Time { return now.Add(time.Duration(i-20) * time.Second) }
	var first, second []point
	for i := 10; i <= 20; i++ {
		first = append(first, point{"c", 1, at(i)})
	}
	for i := 15; i <= 25; i++ { // the same numbers 15-20, other times
		second = append(second, point{"c", 100, at(i).Add(300 * time.Millisecond)})
	}
	// The winner arrives last, and by accepted_at it was first.
	a.accept(a.build(host, 15, now, second...))
	n := start(t, a, nil)
	<-n.Complete()
	future := now.Add(10 * time.Second)
	if got := n.value(`sum_over_time(c[5m] @ ` + unix(future) + `)`); got != "1100" {
		t.Fatalf("before the winner: %s", got)
	}
	a.accept(a.build(host, 10, now.Add(-time.Second), first...))
	eventually(t, "11 of the winner and 5 of the loser", func() bool {
		return n.value(`sum_over_time(c[5m] @ `+unix(future)+`)`) == "511"
	})
	e := n.get("/api/v1/query", "query", "c")
	if e.Lightmetrics.AgentsWithGaps != 1 || !has(e.Infos, "overlap") || e.Lightmetrics.Partial {
		t.Errorf("the overlap is not reported: %+v %v", e.Lightmetrics, e.Infos)
	}
}

func unix(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

func TestMissingBlobIsPartialUntilItIsBack(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	b := a.build(host, 1, now, point{"up", 1, now})
	a.accept(b)
	if err := a.Delete(context.Background(), b.manifest.RawBlobKey); err != nil {
		t.Fatal(err)
	}
	n := start(t, a, nil)
	<-n.Complete()
	e := n.get("/api/v1/query", "query", "up")
	if !e.Lightmetrics.Partial || !has(e.Lightmetrics.Reasons, "BATCH_UNREADABLE") || !has(e.Warnings, "BATCH_UNREADABLE") {
		t.Fatalf("not marked: %+v %v", e.Lightmetrics, e.Warnings)
	}
	// A range that the batch has no samples in is whole.
	e = n.get("/api/v1/query", "query", "up", "time", now.Add(-30*time.Minute).Format(time.RFC3339))
	if e.Lightmetrics.Partial {
		t.Errorf("another range is marked: %+v", e.Lightmetrics)
	}
	// Another generation with the same bytes will do; a corrupt one will not.
	a.put(layout.Blob(b.manifest.FrameSHA256, 1), append([]byte("x"), b.frame...))
	a.put(layout.Blob(b.manifest.FrameSHA256, 2), b.frame)
	eventually(t, "the batch is read", func() bool { return n.value("up") == "1" })
	if e := n.get("/api/v1/query", "query", "up"); e.Lightmetrics.Partial {
		t.Errorf("still marked: %+v", e.Lightmetrics)
	}
}

// TestDamagedSegmentHoldsCompletenessBack: nobody else knows the batches of a segment, so that what is complete
// does not move beyond one that can't be read, and answers say so everywhere. A damaged manifest
// changes nothing: the journal has what a query needs of it.
func TestDamagedSegmentHoldsCompletenessBack(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	b := a.build(host, 1, now, point{"up", 1, now})
	a.accept(b)
	a.put(layout.Accepted(b.manifest.Identity), []byte("{"))
	n := start(t, a, func(c *query.Config) {
		c.Follow.IdleInterval, c.StaleAfter = 20*time.Millisecond, 200*time.Millisecond
	})
	<-n.Complete()
	eventually(t, "a whole answer", func() bool {
		e := n.get("/api/v1/query", "query", "up")
		return e.value() == "1" && !e.Lightmetrics.Partial
	})
	key := layout.JournalSegment([16]byte{1}, 0)
	a.put(key, []byte("nothing"))
	eventually(t, "a marked answer", func() bool {
		return has(n.get("/api/v1/query", "query", "up", "time", unix(now.Add(-time.Hour))).Lightmetrics.Reasons, "JOURNAL_STALE")
	})
	other := start(t, a, nil)
	if e := other.get("/api/v1/query", "query", "up"); !has(e.Lightmetrics.Reasons, "JOURNAL_UNREAD") || e.Lightmetrics.CompleteThrough != "" {
		t.Errorf("after a start: %+v", e.Lightmetrics)
	}
	if err := a.Delete(context.Background(), key); err != nil {
		t.Fatal(err)
	}
	eventually(t, "whole again", func() bool { return !n.get("/api/v1/query", "query", "up").Lightmetrics.Partial })
	<-other.Complete()
}

func TestStoreDownIsPartialAfterTheBound(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	a.accept(a.build(host, 1, now, point{"up", 1, now}))
	n := start(t, a, func(c *query.Config) {
		c.Follow.IdleInterval, c.StaleAfter = 20*time.Millisecond, 200*time.Millisecond
	})
	<-n.Complete()
	eventually(t, "a whole answer", func() bool {
		e := n.get("/api/v1/query", "query", "up")
		return !e.Lightmetrics.Partial && n.value("up") == "1"
	})
	a.down.Store(true)
	eventually(t, "a stale answer", func() bool {
		e := n.get("/api/v1/query", "query", "up")
		return has(e.Lightmetrics.Reasons, "JOURNAL_STALE") && has(e.Warnings, "JOURNAL_STALE") && n.value("up") == "1"
	})
	a.down.Store(false)
	eventually(t, "whole again", func() bool { return !n.get("/api/v1/query", "query", "up").Lightmetrics.Partial })
}

func TestNotReadyBeforeTheJournalIsRead(t *testing.T) {
	a := newAuthority(t)
	a.down.Store(true)
	n := start(t, a, nil)
	ready := func() int {
		resp, err := http.Get(n.url + "/-/ready")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if got := ready(); got != http.StatusServiceUnavailable {
		t.Errorf("ready is %d", got)
	}
	if e := n.get("/api/v1/query", "query", "up"); !has(e.Lightmetrics.Reasons, "JOURNAL_UNREAD") {
		t.Errorf("not marked: %+v", e.Lightmetrics)
	}
	a.down.Store(false)
	eventually(t, "ready", func() bool { return ready() == http.StatusOK })
}

// A range that begins before the history is partial where something was written then: not
// on an empty authority, nor before the first sample of every boot.
func TestRangeBeforeHistoryIsPartial(t *testing.T) {
	a := newAuthority(t)
	n := start(t, a, nil)
	<-n.Complete()
	before := func() bool {
		t.Helper()
		return has(n.get("/api/v1/query", "query", "up[3h]").Lightmetrics.Reasons, "BEFORE_HISTORY")
	}
	if before() {
		t.Error("nothing was ever written, and the answer is marked")
	}
	now := time.Now()
	young, old := now.Add(-time.Hour), now.Add(-150*time.Minute)
	a.accept(a.build(host, 1, young, point{"up", 1, young}))
	eventually(t, "the first batch", func() bool { return n.value("count_over_time(up[3h])") == "1" })
	if before() {
		t.Error("nothing was written before the history, and the answer is marked")
	}
	a.accept(a.build(identity.Boot{Agent: "other", Boot: "b"}, 1, old, point{"up", 1, old}))
	eventually(t, "another boot began before the history", before)

	// A node that starts later reads the first manifests of boots that it never shows.
	n = start(t, a, nil)
	<-n.Complete()
	if !before() {
		t.Error("after a start: not marked")
	}
}

func TestMemoryBoundIsPartial(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	for i := range 100 {
		at := now.Add(time.Duration(i-100) * time.Second)
		a.accept(a.build(host, uint64(i+1), at, point{"up", 1, at}))
	}
	n := start(t, a, func(c *query.Config) { c.History.MaxBytes = 32 << 10 })
	<-n.Complete()
	e := n.get("/api/v1/query", "query", "up[10m]")
	if !has(e.Lightmetrics.Reasons, "MEMORY_BOUND") {
		t.Errorf("not marked: %+v", e.Lightmetrics)
	}
	live := int(n.number("lightmetrics_query_live_batches"))
	if m := e.Lightmetrics.Missing; len(m) != 1 || m[0].Batches != 100-live || m[0].AtLeast || len(m[0].Hours) == 0 {
		t.Errorf("%d of 100 batches are in memory, and the answer says of the others %+v", live, m)
	}
}

// TestReasonsSayHowMuch: a reason says how many batches are missing, of which hours and shards, over HTTP, over gRPC and
// on the page; of the range that was asked for.
func TestReasonsSayHowMuch(t *testing.T) {
	a := newAuthority(t)
	a.rollups()
	h := timegrid.HourOf(time.Now().Add(-2 * time.Hour).UnixMilli())
	shards := map[uint32]bool{}
	for i := range 6 {
		agent := fmt.Sprintf("agent-%d", i)
		at := (h + timegrid.Hour(i%2)).Start().Add(time.Duration(10+i) * time.Minute)
		b := a.build(identity.Boot{Agent: agent, Boot: "b"}, 1, at, point{"up", 1, at})
		a.accept(b)
		if i < 5 {
			if err := a.Delete(context.Background(), b.manifest.RawBlobKey); err != nil {
				t.Fatal(err)
			}
			shards[uint32(shard.Of(agent, rollupShards))] = true
		}
	}
	n := start(t, a, func(c *query.Config) { c.History.Window = 6 * time.Hour })
	<-n.Complete()
	end := (h + 1).End()
	e := n.get("/api/v1/query", "query", "up[2h]", "time", unix(end))
	m := e.Lightmetrics.Missing
	if len(m) != 1 || m[0].Code != "BATCH_UNREADABLE" || m[0].Batches != 5 || len(m[0].Shards) != len(shards) ||
		len(m[0].Hours) != 1 || !m[0].Hours[0][0].Equal(h.Start()) || !m[0].Hours[0][1].Equal(end) {
		t.Errorf("over HTTP: %+v", e.Lightmetrics)
	}
	what := "5 batches, hours " + h.Start().Format(time.RFC3339) + " to " + end.Format(time.RFC3339)
	if !has(e.Warnings, what) || !has(e.Warnings, "and 2 more") {
		t.Errorf("warnings %q lack %q", e.Warnings, what)
	}
	if e := n.get("/api/v1/query", "query", "up[1h]", "time", unix(end)); len(e.Lightmetrics.Missing) != 1 || e.Lightmetrics.Missing[0].Batches != 2 {
		t.Errorf("of the second hour: %+v", e.Lightmetrics)
	}
	ms := end.UnixMilli()
	r, err := client(t, n).Query(t.Context(), &queryv1.QueryRequest{Expression: "up[2h]", TimeUnixMs: &ms})
	if err != nil {
		t.Fatal(err)
	}
	x := r.GetCompleteness().GetMissing()
	if len(x) != 1 || x[0].GetCode() != "BATCH_UNREADABLE" || x[0].GetBatches() != 5 || len(x[0].GetShards()) != len(shards) || x[0].GetHours()[0].GetEndUnixMs() != ms {
		t.Errorf("over gRPC: %v", r.GetCompleteness())
	}
	for _, got := range x[0].GetShards() {
		if !shards[got] {
			t.Errorf("shard %d is named, want %v", got, shards)
		}
	}
}

func TestOldBatchesAreCountedNotRead(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	old := now.Add(-5 * time.Hour)
	a.accept(a.build(host, 1, old, point{"up", 1, old}))
	b := a.build(host, 2, now, point{"up", 1, now})
	a.accept(b)
	gone := a.build(host, 3, old, point{"up", 1, old})
	a.accept(gone)
	if err := a.Delete(context.Background(), gone.manifest.RawBlobKey); err != nil {
		t.Fatal(err) // not missed: its frame lies before the window
	}
	n := start(t, a, nil)
	<-n.Complete()
	if e := n.get("/api/v1/query", "query", "up"); e.Lightmetrics.Partial || n.value("up") != "1" {
		t.Errorf("%+v", e)
	}
	c := client(t, n)
	resp, err := c.ListAgents(context.Background(), &queryv1.ListAgentsRequest{})
	if err != nil || len(resp.GetAgents()) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	if ag := resp.GetAgents()[0]; ag.GetAcceptedThrough() != 3 || ag.GetRecordCount() != 3 || ag.GetBatchCount() != 3 {
		t.Errorf("ledger %v", ag)
	}
}

func client(t *testing.T, n *node) queryv1.QueryServiceClient {
	t.Helper()
	conn, err := rpc.Dial(n.GRPCAddr(), rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return queryv1.NewQueryServiceClient(conn)
}

func TestGRPCAndGateway(t *testing.T) {
	a := newAuthority(t)
	now := time.Now().Truncate(time.Second)
	for i := range 3 { // a gap at 2, 4
		at := now.Add(time.Duration(i-3) * time.Minute)
		a.accept(a.build(host, uint64(1+2*i), at, point{"up", float64(i), at}))
	}
	other := a.build(host, 1, now, point{"up", 9, now})
	rec := accept.ConflictRecord{
		AuthorityID: "test", Identity: other.manifest.Identity,
		AcceptedBlobKey: layout.Blob(identity.Sum([]byte("a")), 0), AcceptedSHA256: identity.Sum([]byte("a")),
		SubmittedBlobKey: other.manifest.RawBlobKey, SubmittedSHA256: other.manifest.FrameSHA256,
		AcceptedManifestKey: layout.Accepted(other.manifest.Identity), ObservedAt: 5, CollectorID: "c9", Met: other.manifest.Identity,
	}
	rec.Met.SeqEnd += 7
	a.put(layout.Quarantine(rec.Identity, rec.SubmittedSHA256), rec.Marshal())
	n := start(t, a, nil)
	<-n.Complete()
	ctx := context.Background()
	c := client(t, n)
	ms := now.UnixMilli()
	q, err := c.Query(ctx, &queryv1.QueryRequest{Expression: "max(up)", TimeUnixMs: &ms})
	if err != nil || q.GetResultType() != "vector" || q.GetSeries()[0].GetPoints()[0].GetValue() != 2 {
		t.Fatalf("%v, %v", q, err)
	}
	if g := q.GetCompleteness(); g.GetPartial() || len(g.GetAgents()) != 1 || len(g.GetAgents()[0].GetGaps()) != 2 || g.GetCompleteThroughUnixNs() == 0 {
		t.Errorf("completeness %v", g)
	}
	stream, err := c.QueryRange(ctx, &queryv1.QueryRangeRequest{Expression: "up", StartUnixMs: ms - 180_000, EndUnixMs: ms, StepMs: 60_000})
	if err != nil {
		t.Fatal(err)
	}
	var points int
	var last *queryv1.Completeness
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		points += len(m.GetSeries().GetPoints())
		last = m.GetCompleteness()
	}
	if points != 4 || last == nil {
		t.Errorf("%d points, completeness %v", points, last)
	}
	if _, err := c.Query(ctx, &queryv1.QueryRequest{Expression: "sum("}); status.Code(err) != codes.InvalidArgument || rpc.Reason(err) != "BAD_QUERY" {
		t.Errorf("bad query: %v", err)
	}
	if _, err := c.ListAgents(ctx, &queryv1.ListAgentsRequest{PageToken: "!"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("bad token: %v", err)
	}
	cs, err := c.ListConflicts(ctx, &queryv1.ListConflictsRequest{AgentId: "host1"})
	if err != nil || len(cs.GetConflicts()) != 1 || cs.GetConflicts()[0].GetCollectorId() != "c9" ||
		cs.GetConflicts()[0].AcceptedSeqStart == nil || cs.GetConflicts()[0].GetAcceptedSeqEnd() != rec.Met.SeqEnd {
		t.Errorf("conflicts %v, %v", cs, err)
	}
	for path, want := range map[string]string{
		"/v1/query?expression=up%2B1": `"vector"`,
		"/v1/agents":                  `"agent_id":"host1"`,
		"/v1/conflicts":               `"collector_id":"c9"`,
		"/v1/query_range?expression=up&start_unix_ms=0&end_unix_ms=1&step_ms=1": `"completeness"`,
		"/status":  fmt.Sprintf(" of %d-%d", rec.Met.SeqStart, rec.Met.SeqEnd),
		"/":        `"path":"/v1/agents"`,
		"/metrics": "lightmetrics_query_live_series",
		"/config":  "poll_interval",
	} {
		resp, err := http.Get(n.url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || !strings.Contains(strings.ReplaceAll(string(body), `": "`, `":"`), want) {
			t.Errorf("%s: %d, no %s in %.300s", path, resp.StatusCode, want, body)
		}
	}
}
