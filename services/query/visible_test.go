package query_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	queryv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/query/v1"
	"lightmetrics.dev/lightmetrics/services/query"
)

// TestReadYourWrites: a query with the position of an answer sees the batch, however rare polls are, and so does
// one that asks for strong consistency. What can't be waited for is an error with a reason.
func TestReadYourWrites(t *testing.T) {
	a := newAuthority(t)
	w := a.writer("c1", journal.RoleCollector)
	now := time.Now()
	w.accept(a.build(host, 1, now, point{"up", 1, now.Add(-9 * time.Second)}))
	n := start(t, a, func(c *query.Config) {
		slowPolls(c)
		c.Follow.TokenTimeout = 300 * time.Millisecond
	})
	<-n.Complete()
	const count = "sum(count_over_time(up[1m]))"
	for i := range 4 {
		at := w.accept(a.build(host, uint64(2+i), now, point{"up", 1, now.Add(time.Duration(i-8) * time.Second)}))
		if e := n.get("/api/v1/query", "query", count, "min_token", at.String()); e.value() != string(rune('2'+i)) || e.Lightmetrics.Partial {
			t.Errorf("token %d: %s %s %+v", i, e.value(), e.Error, e.Lightmetrics)
		}
	}
	// A run that this node has never heard of.
	other := a.writer("c2", journal.RoleCollector).accept(a.build(host, 20, now, point{"up", 1, now}))
	if e := n.get("/api/v1/query", "query", count, "min_token", other.String()); e.value() != "6" {
		t.Errorf("another run: %s %s", e.value(), e.Error)
	}
	a.writer("c3", journal.RoleCollector).accept(a.build(host, 21, now, point{"up", 1, now.Add(time.Millisecond)}))
	if e := n.get("/api/v1/query", "query", count, "consistency", "strong"); e.value() != "7" {
		t.Errorf("strong: %s %s", e.value(), e.Error)
	}
	c := client(t, n)
	last := w.accept(a.build(host, 22, now, point{"up", 1, now.Add(2 * time.Millisecond)}))
	q, err := c.Query(t.Context(), &queryv1.QueryRequest{Expression: count, MinTokens: []string{last.String()}})
	if err != nil || q.GetSeries()[0].GetPoints()[0].GetValue() != 8 {
		t.Errorf("over gRPC: %v, %v", q, err)
	}

	// What no collector has answered is said at once, however long one would wait for a token.
	never := journal.Position{Run: journal.RunID{1, 2}, Segment: 3}
	for _, p := range []journal.Position{never, {Run: last.Run, Segment: last.Segment + 1}} {
		if e := n.get("/api/v1/query", "query", count, "min_token", p.String()); e.code != 400 || e.ErrorType != "bad_data" || !strings.Contains(e.Error, "TOKEN_UNKNOWN") {
			t.Errorf("%s: %d %s %s", p, e.code, e.ErrorType, e.Error)
		}
	}
	_, err = c.Query(t.Context(), &queryv1.QueryRequest{Expression: count, MinTokens: []string{never.String()}})
	if status.Code(err) != codes.InvalidArgument || rpc.Reason(err) != "TOKEN_UNKNOWN" || strings.Contains(status.Convert(err).Message(), "TOKEN_UNKNOWN") {
		t.Errorf("over gRPC: %v", err)
	}
	a.down.Store(true)
	if e := n.get("/api/v1/query", "query", count, "consistency", "strong"); e.code != 503 || !strings.Contains(e.Error, "TOKEN_NOT_VISIBLE") {
		t.Errorf("the store is down: %d %s", e.code, e.Error)
	}
	if e := n.get("/api/v1/query", "query", count, "min_token", never.String()); e.code != 503 || !strings.Contains(e.Error, "TOKEN_NOT_VISIBLE") {
		t.Errorf("the store is down: %d %s", e.code, e.Error)
	}
	_, err = c.Query(t.Context(), &queryv1.QueryRequest{Expression: count, MinTokens: []string{never.String()}})
	if status.Code(err) != codes.Unavailable || rpc.Reason(err) != "TOKEN_NOT_VISIBLE" {
		t.Errorf("over gRPC, the store is down: %v", err)
	}
	a.down.Store(false)
	for _, params := range [][]string{{"min_token", "nonsense"}, {"consistency", "weak"}} {
		if e := n.get("/api/v1/query", append(params, "query", count)...); e.code != 400 || e.ErrorType != "bad_data" {
			t.Errorf("%v: %d %s", params, e.code, e.Error)
		}
	}
	if _, err := c.Query(t.Context(), &queryv1.QueryRequest{Expression: count, MinTokens: []string{"x"}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a token that is none: %v", err)
	}
	// Other lists wait as well.
	at := w.accept(a.build(host, 23, now, point{"fresh", 1, now}))
	if e := n.get("/api/v1/label/__name__/values", "min_token", at.String()); !strings.Contains(string(e.Data), "fresh") {
		t.Errorf("label values: %s", e.Data)
	}
}

// TestTokensOfRunsThatTheHeadHasForgotten: the run of an old token has ended, and the head of the journal does not name
// it any more. Its batches are visible, to a node that has read them and to one that begins afterwards.
func TestTokensOfRunsThatTheHeadHasForgotten(t *testing.T) {
	a := newAuthority(t)
	w := a.writer("c1", journal.RoleCollector)
	now := time.Now()
	at := w.accept(a.build(host, 1, now, point{"up", 1, now.Add(-time.Second)}))
	if err := w.w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := start(t, a, slowPolls)
	<-before.Complete()
	a.forget(at.Run)
	after := start(t, a, slowPolls)
	for name, n := range map[string]*node{"before": before, "after": after} {
		if e := n.get("/api/v1/query", "query", "up", "min_token", at.String()); e.code != 200 || e.value() != "1" || e.Lightmetrics.Partial {
			t.Errorf("a node that began %s: %d %s %s %+v", name, e.code, e.value(), e.Error, e.Lightmetrics)
		}
	}
}
