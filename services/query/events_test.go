package query_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/services/query"
)

// TestEventsShowBatchesWithoutAPoll: a webhook's event of a segment shows a batch although no reconciler and no
// collector is watched, and the next poll is an hour away.
func TestEventsShowBatchesWithoutAPoll(t *testing.T) {
	a := newAuthority(t)
	now := time.Now()
	w := a.writer("c1", journal.RoleCollector)
	w.accept(a.build(host, 1, now, point{"up", 1, now.Add(-2 * time.Second)}))
	n := start(t, a, func(c *query.Config) {
		slowPolls(c)
		c.Events.Webhook, c.Store.Bucket, c.Store.Prefix = true, "metrics", "prod/"
	})
	<-n.Complete()
	tell := func(at journal.Position) {
		t.Helper()
		body := fmt.Sprintf(`{"Records":[{"eventName":"s3:ObjectCreated:Put","s3":{"bucket":{"name":"metrics"},"object":{"key":%q}}}]}`, "prod/"+at.Key())
		resp, err := http.Post(n.url+"/v1/events", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	tell(w.accept(a.build(host, 2, now, point{"up", 1, now.Add(-time.Second)})))
	eventually(t, "the batch of a known run", func() bool { return n.value("sum(sum_over_time(up[1m]))") == "2" })
	tell(a.writer("c2", journal.RoleCollector).accept(a.build(host, 3, now, point{"up", 5, now})))
	eventually(t, "the batch of a new run", func() bool { return n.value("sum(sum_over_time(up[1m]))") == "7" })
	if polls := n.number(`lightmetrics_query_journal_polls_total{outcome="ok"}`); polls != 2 {
		t.Errorf("%v polls", polls)
	}
}
