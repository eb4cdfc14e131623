package sqstest

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// patience bounds the waits of a test; none measures time.
const patience = 20 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open is the client of the product.
func open(t *testing.T, url string, change func(*events.Queue)) *sqs.Queue {
	t.Helper()
	cfg := events.DefaultConfig().Queue
	cfg.URL, cfg.Wait, cfg.Visibility = url, time.Second, time.Second
	if change != nil {
		change(&cfg)
	}
	store := s3.DefaultConfig()
	store.AccessKeyID, store.SecretAccessKey = "of-the-store", "secret"
	q, err := sqs.Open(t.Context(), cfg, store)
	must(t, err)
	t.Cleanup(q.Close)
	return q
}

// Segment is S3's event JSON of a segment of the journal.
func Segment(bucket string, at journal.Position) string {
	return fmt.Sprintf(`{"Records":[{"eventName":"ObjectCreated:Put","eventTime":%q,"s3":{"bucket":{"name":%q},"object":{"key":%q}}}]}`, time.Now().UTC().Format(time.RFC3339Nano), bucket, at.Key())
}

// Run tests the client and the consumer against a server, which may be one of other hands.
func Run(t *testing.T, endpoint string) {
	ctx := t.Context()
	t.Run("a delivery that is not deleted comes again", func(t *testing.T) {
		url, err := CreateQueue(ctx, endpoint, "again")
		must(t, err)
		q := open(t, url, nil)
		ms, err := q.Receive(ctx)
		if err != nil || len(ms) != 0 {
			t.Fatalf("an empty queue gives %v, %v", ms, err)
		}
		begin := time.Now().Add(-time.Minute)
		must(t, Send(ctx, url, "ä body"))
		if n, err := q.Length(ctx); err != nil || n != 1 {
			t.Errorf("length %d, %v", n, err)
		}
		var ids []string
		for len(ids) < 2 {
			ms, err := q.Receive(ctx)
			must(t, err)
			for _, m := range ms {
				if m.Body != "ä body" || m.Sent.Before(begin) || m.Receipt == "" {
					t.Fatalf("%+v", m)
				}
				if ids = append(ids, m.ID); len(ids) == 2 {
					failed, err := q.Delete(ctx, ms)
					if err != nil || failed != 0 {
						t.Errorf("%d, %v", failed, err)
					}
				}
			}
			if time.Since(begin) > time.Minute+patience {
				t.Fatal("delivered once alone")
			}
		}
		if ids[0] != ids[1] {
			t.Errorf("%v are not one message", ids)
		}
		if n, err := q.Length(ctx); err != nil || n != 0 {
			t.Errorf("length %d, %v", n, err)
		}
		// A receipt that is no one's: refused for this message, or the whole request; never taken for success by the caller.
		if failed, err := q.Delete(ctx, []events.QueuedMessage{{Receipt: "AQEBnone"}}); err == nil && failed == 0 {
			t.Log("this server takes any receipt")
		}
	})
	t.Run("no such server", func(t *testing.T) {
		q := open(t, "http://127.0.0.1:1/000000000000/none", nil)
		if ms, err := q.Receive(ctx); err == nil {
			t.Errorf("%v", ms)
		}
		if _, err := q.Delete(ctx, []events.QueuedMessage{{Receipt: "r"}}); err == nil {
			t.Error("deleted")
		}
		if n, err := q.Length(ctx); err == nil {
			t.Errorf("length %d", n)
		}
	})
	t.Run("everything is taken and deleted", func(t *testing.T) {
		url, err := CreateQueue(ctx, endpoint, "consumed")
		must(t, err)
		const count = 35
		for i := range count {
			must(t, Send(ctx, url, Segment("metrics", journal.Position{Run: journal.RunID{7}, Segment: uint64(i)})))
		}
		must(t, Send(ctx, url, "no event"))
		var mu sync.Mutex
		got := map[uint64]int{}
		to := events.NewReceiver(events.Deps{
			Bucket: "metrics", Segment: func(p journal.Position) {
				mu.Lock()
				defer mu.Unlock()
				got[p.Segment]++
			},
			Metrics: events.NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		})
		cfg := events.DefaultConfig().Queue
		cctx, stop := context.WithCancel(ctx)
		g := run.NewGroup(cctx)
		g.Go("consumer", events.NewConsumer(cfg, open(t, url, nil), to).Run)
		taken := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(got)
		}
		for end := time.Now().Add(patience); taken() < count && time.Now().Before(end); {
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond) // the message that is no event may be the last
		stop()
		must(t, g.Wait())
		if n := taken(); n != count {
			t.Errorf("%d of %d were taken", n, count)
		}
		// What was not deleted would be visible again within this request.
		left, err := open(t, url, func(c *events.Queue) { c.Wait = 2 * time.Second }).Receive(ctx)
		if err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}
