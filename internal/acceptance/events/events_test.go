package events

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/web"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// taken are the hints that a receiver gave on.
type taken struct {
	mu       sync.Mutex
	segments []journal.Position
	accepted []identity.Batch
}

func newReceiver(reg *prometheus.Registry) (*Receiver, *taken) {
	got := &taken{}
	return NewReceiver(Deps{
		Bucket: "metrics", Prefix: "prod/",
		Segment: func(p journal.Position) {
			got.mu.Lock()
			defer got.mu.Unlock()
			got.segments = append(got.segments, p)
		},
		Accepted: func(id identity.Batch) {
			got.mu.Lock()
			defer got.mu.Unlock()
			got.accepted = append(got.accepted, id)
		},
		Metrics: NewMetrics(reg), Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}), got
}

// record is an event as S3 writes it.
func record(bucket, key string, at time.Time) string {
	return fmt.Sprintf(`{"eventName":"ObjectCreated:Put","eventTime":%q,"s3":{"bucket":{"name":%q},"object":{"key":%q}}}`, at.UTC().Format(time.RFC3339Nano), bucket, strings.ReplaceAll(key, "=", "%3D"))
}

func message(records ...string) []byte {
	return []byte(`{"Records":[` + strings.Join(records, ",") + `]}`)
}

var (
	at7   = journal.Position{Run: journal.RunID{1}, Segment: 7}
	batch = identity.Batch{Agent: "a", Boot: "b", SeqStart: 1, SeqEnd: 9}
)

// TestHints: what is ours is given on, everything else is counted.
func TestHints(t *testing.T) {
	reg := prometheus.NewRegistry()
	r, got := newReceiver(reg)
	now := time.Now()
	segment, accepted := "prod/"+at7.Key(), "prod/"+layout.Accepted(batch)
	c, err := r.Take("queue", message(
		record("metrics", segment, now), record("metrics", accepted, now.Add(-time.Hour)),
		record("metrics-replica", segment, now), record("metrics", strings.TrimPrefix(segment, "prod/"), now), record("metrics", "prod2"+segment, now),
		record("metrics", segment, now.Add(-6*time.Minute)),
		record("metrics", "prod/journal/v1/head.json", now), record("metrics", "prod/raw-blobs/v1/x", now), record("metrics", segment+"x", now),
		`{"eventName":"ObjectRemoved:Delete","s3":{"bucket":{"name":"metrics"},"object":{"key":"prod/x"}}}`,
	))
	if want := (Counts{Hints: 2, Foreign: 3, Ignored: 5}); err != nil || c != want {
		t.Errorf("%+v, %v, want %+v", c, err, want)
	}
	if d := cmp.Diff([]journal.Position{at7}, got.segments); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]identity.Batch{batch}, got.accepted); d != "" {
		t.Error(d)
	}
	if _, err := r.Take("webhook", []byte("?")); !errors.Is(err, ErrUnknownMessage) {
		t.Error(err)
	}
	want := `
# HELP lightmetrics_event_messages_total Messages with events of the object store, by source (webhook, queue) and result: taken, test (the store tries its configuration), unknown.
# TYPE lightmetrics_event_messages_total counter
lightmetrics_event_messages_total{result="taken",source="queue"} 1
lightmetrics_event_messages_total{result="unknown",source="queue"} 0
lightmetrics_event_messages_total{result="unknown",source="webhook"} 1
# HELP lightmetrics_event_objects_total Objects that they name, by source and kind: segment (of the journal), accepted (a manifest), stale (older than 5 minutes), foreign (of another bucket or prefix), other.
# TYPE lightmetrics_event_objects_total counter
lightmetrics_event_objects_total{kind="accepted",source="queue"} 1
lightmetrics_event_objects_total{kind="foreign",source="queue"} 3
lightmetrics_event_objects_total{kind="other",source="queue"} 4
lightmetrics_event_objects_total{kind="segment",source="queue"} 1
lightmetrics_event_objects_total{kind="stale",source="queue"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "lightmetrics_event_messages_total", "lightmetrics_event_objects_total"); err != nil {
		t.Error(err)
	}
}

// TestWebhook: bodies are bounded, what is no event is refused, and what is none of ours is not.
func TestWebhook(t *testing.T) {
	r, got := newReceiver(prometheus.NewRegistry())
	mux := web.NewMux("test", "v0", nil)
	mux.Handle(r.Route())
	post := func(body string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/events", strings.NewReader(body)))
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	for _, c := range []struct {
		body, answer string
		code         int
	}{
		{string(message(record("metrics", "prod/"+at7.Key(), time.Now()), record("other", "k", time.Now()))), `{"hints":1,"foreign":1,"ignored":0}`, 200},
		{`{"Event":"s3:TestEvent"}`, `{"hints":0,"foreign":0,"ignored":0}`, 200},
		{`{"Records":[]}`, `{"hints":0,"foreign":0,"ignored":0}`, 200},
		{"?", `"unknown_message"`, 400},
		{strings.Repeat(" ", MaxMessage+1), `"body_too_large"`, 413},
	} {
		if code, answer := post(c.body); code != c.code || !strings.Contains(answer, c.answer) {
			t.Errorf("%.60q: %d %s, want %d %s", c.body, code, answer, c.code, c.answer)
		}
	}
	if len(got.segments) != 1 {
		t.Error(got.segments)
	}
}

// memQueue is a queue in memory, whose calls can fail.
type memQueue struct {
	mu       sync.Mutex
	messages []QueuedMessage
	fail     error
	deleted  []string
	receives int
	// onDelete is called before a delete.
	onDelete func(context.Context)
}

func (q *memQueue) Receive(ctx context.Context) ([]QueuedMessage, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.receives++
	if q.fail != nil {
		return nil, q.fail
	}
	ms := q.messages
	q.messages = nil
	return ms, ctx.Err()
}

func (q *memQueue) Delete(ctx context.Context, ms []QueuedMessage) (int, error) {
	if q.onDelete != nil {
		q.onDelete(ctx)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range ms {
		q.deleted = append(q.deleted, m.ID)
	}
	return 0, ctx.Err()
}

func (q *memQueue) asked() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.receives
}

func (q *memQueue) Length(context.Context) (int, error) { return 3, nil }

func consume(t *testing.T, cfg Queue, q MessageQueue, r *Receiver) (c *Consumer, stop func()) {
	c = NewConsumer(cfg, q, r)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return c, func() {
		cancel()
		<-done
	}
}

// TestUnknownMessages are deleted or left, by the setting; what is known is deleted either way.
func TestUnknownMessages(t *testing.T) {
	for _, unknown := range []string{UnknownDelete, UnknownLeave} {
		synctest.Test(t, func(t *testing.T) {
			cfg := DefaultConfig().Queue
			cfg.Unknown = unknown
			q := &memQueue{messages: []QueuedMessage{{ID: "unknown", Body: "?"}, {ID: "test", Body: `{"Event":"s3:TestEvent"}`}, {ID: "foreign", Body: string(message(record("other", "k", time.Now())))}}}
			r, _ := newReceiver(prometheus.NewRegistry())
			_, stop := consume(t, cfg, q, r)
			synctest.Wait()
			stop()
			want := []string{"unknown", "test", "foreign"}
			if unknown == UnknownLeave {
				want = want[1:]
			}
			if d := cmp.Diff(want, q.deleted); d != "" {
				t.Errorf("%s: %s", unknown, d)
			}
		})
	}
}

// TestTakenMessagesAreDeletedAtAShutdown, with a context that has not ended; otherwise every restart would
// have messages delivered again.
func TestTakenMessagesAreDeletedAtAShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig().Queue
		cfg.Receivers = 1
		r, got := newReceiver(prometheus.NewRegistry())
		q := &memQueue{messages: []QueuedMessage{{ID: "m", Body: string(message(record("metrics", "prod/"+at7.Key(), time.Now())))}}}
		c := NewConsumer(cfg, q, r)
		ctx, cancel := context.WithCancel(t.Context())
		q.onDelete = func(context.Context) { cancel() }
		if err := c.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if len(got.segments) != 1 || len(q.deleted) != 1 {
			t.Errorf("taken %v, deleted %v", got.segments, q.deleted)
		}
	})
}

// TestAFailingQueueIsAskedLessAndLess, and its metrics say for how long it fails and how old messages are.
func TestAFailingQueueIsAskedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig().Queue
		cfg.Receivers = 1
		r, got := newReceiver(prometheus.NewRegistry())
		q := &memQueue{fail: errors.New("down")}
		c, stop := consume(t, cfg, q, r)
		defer stop()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		failing, _, length := c.state()
		if n := q.asked(); n > 50 || n < 20 || failing < 9*time.Minute || length != 3 {
			t.Errorf("asked %d times, failing for %s, %d long", n, failing, length)
		}
		var age time.Duration
		q.mu.Lock()
		q.onDelete = func(context.Context) { _, age, _ = c.state() }
		q.fail, q.messages = nil, []QueuedMessage{{ID: "m", Body: string(message(record("metrics", "prod/"+at7.Key(), time.Now()))), Sent: time.Now().Add(-time.Minute)}}
		q.mu.Unlock()
		time.Sleep(maxDelay)
		synctest.Wait()
		if failing, now, _ := c.state(); failing != 0 || age < time.Minute || now != 0 || len(got.segments) != 1 {
			t.Errorf("failing for %s, age %s, then %s, taken %v", failing, age, now, got.segments)
		}
		// The queue doesn't wait for messages: it is asked once a second, and not all the time.
		before := q.asked()
		time.Sleep(time.Minute)
		if n := q.asked() - before; n > 61 {
			t.Errorf("asked %d times in a minute", n)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	good := DefaultConfig()
	good.Queue.URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/metrics"
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Queue){
		"a name":     func(q *Queue) { q.URL = "metrics" },
		"an ARN":     func(q *Queue) { q.URL = "arn:aws:sqs:eu-central-1:123456789012:metrics" },
		"no queue":   func(q *Queue) { q.URL = "https://sqs.eu-central-1.amazonaws.com/" },
		"a user":     func(q *Queue) { q.URL = "https://u:p@sqs.eu-central-1.amazonaws.com/1/q" },
		"half a key": func(q *Queue) { q.AccessKeyID = "k" },
		"no TLS":     func(q *Queue) { q.URL, q.CAFile = "http://127.0.0.1/1/q", "ca.pem" },
		"receivers":  func(q *Queue) { q.Receivers = 0 },
		"no wait":    func(q *Queue) { q.Wait = 0 },
		"long wait":  func(q *Queue) { q.Wait = 21 * time.Second },
		"visibility": func(q *Queue) { q.Visibility = 1500 * time.Millisecond },
		"unknown":    func(q *Queue) { q.Unknown = "keep" },
	} {
		c := good
		change(&c.Queue)
		if c.Validate() == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
