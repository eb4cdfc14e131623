package reconciler

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs/sqstest"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal/journaltest"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
)

// eventful takes events by webhook, and enters what the journal lacks at once.
func eventful() Config {
	c := following()
	c.Journal.Folding.Interval = time.Hour // the segments stay, to be counted
	c.Events.Webhook, c.Events.CheckAfter = true, 20*time.Millisecond
	c.Store.Bucket, c.Store.Prefix = "metrics", "prod/"
	return c
}

// event is S3's event JSON of created objects.
func event(keys ...string) string {
	var records []string
	for _, k := range keys {
		records = append(records, fmt.Sprintf(`{"eventName":"ObjectCreated:Put","eventTime":%q,"s3":{"bucket":{"name":"metrics"},"object":{"key":%q}}}`, time.Now().UTC().Format(time.RFC3339Nano), "prod/"+k))
	}
	return `{"Records":[` + strings.Join(records, ",") + `]}`
}

func (r *running) tell(keys ...string) {
	r.t.Helper()
	resp, err := httpClient.Post(r.url("/v1/events"), "application/json", strings.NewReader(event(keys...)))
	must(r.t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		r.t.Fatal(resp.Status)
	}
}

func (r *running) checked(result string) float64 {
	return testutil.ToFloat64(r.journal.checks.m.WithLabelValues(result))
}

// TestEventsShortenTheWait: a segment that an event names is read although the next poll is an hour away, from a webhook and
// from a queue; and who watches this process is told of it.
func TestEventsShortenTheWait(t *testing.T) {
	for _, source := range []string{"webhook", "queue"} {
		t.Run(source, func(t *testing.T) {
			cfg, s := eventful(), newStore()
			cfg.Journal.Polling.Interval, cfg.Journal.IdleInterval = time.Hour, time.Hour
			r, tell := startEventful(t, cfg, s, source)
			c := r.client()
			eventually(t, "the first poll", func() bool { return testutil.ToFloat64(r.journal.m.polls.WithLabelValues("ok")) == 1 })
			watcher, err := r.journal.relay.watch()
			must(t, err)
			w := collector(t, s, journal.RoleCollector)
			at := journalled(t, w, entryOf(batch("a", 1, 9)))
			tell(at.Key())
			eventually(t, "the batch of a new run", func() bool { return r.ledgerOf(c, "a").GetRecordCount() == 9 })
			at2 := journalled(t, w, entryOf(batch("a", 10, 12)))
			tell(at2.Key(), at.Key(), at2.Key()) // late, and twice
			eventually(t, "the batch of a known run", func() bool { return r.ledgerOf(c, "a").GetRecordCount() == 12 })
			if p := <-watcher.ch; p != at {
				t.Errorf("watchers are told of %v first", p)
			}
			if n := testutil.ToFloat64(r.journal.m.polls.WithLabelValues("ok")); n > 2 {
				t.Errorf("%v polls", n)
			}
		})
	}
}

// startEventful starts a reconciler, and gives what sends it events.
func startEventful(t *testing.T, cfg Config, s objstore.Store, source string) (*running, func(keys ...string)) {
	t.Helper()
	if source == "webhook" {
		r := start(t, cfg, s)
		return r, r.tell
	}
	server := sqstest.Start(t)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	cfg.Events.Webhook, cfg.Events.Queue.URL = false, server.QueueURL("events")
	cfg.Store.AccessKeyID, cfg.Store.SecretAccessKey = "k", "s"
	q, err := sqs.Open(bg, cfg.Events.Queue, cfg.Store)
	must(t, err)
	t.Cleanup(q.Close)
	return startWith(t, cfg, Deps{Store: s, Events: q}), func(keys ...string) {
		must(t, sqstest.Send(bg, cfg.Events.Queue.URL, event(keys...)))
	}
}

// TestEventsOfManifestsThatAreInNoRun: a collector died between manifest and segment, and its sender never comes back. The event
// has the reconciler enter the batch, once, in a run that it ends at once; what the journal has is left alone.
func TestEventsOfManifestsThatAreInNoRun(t *testing.T) {
	s := newStore()
	must(t, journaltest.Complete(bg, s, testAuthority)) // otherwise the first audit finds it
	lost, answered := batch("lost", 1, 9), batch("answered", 1, 5)
	plantBatch(t, s, lost)
	acceptBatch(t, s, answered)
	r := start(t, eventful(), s)
	c := r.client()
	eventually(t, "the journal", func() bool { return r.ledgerOf(c, "answered").GetRecordCount() == 5 })
	damaged, gone := batch("damaged", 1, 2), batch("gone", 1, 2)
	create(t, s, layout.Accepted(damaged), []byte("{}"))
	keys := []string{layout.Accepted(gone), layout.Accepted(lost), layout.Accepted(answered), layout.Accepted(damaged)}
	r.tell(keys...)
	r.tell(keys[1], keys[0], keys[1])
	eventually(t, "the lost batch", func() bool { return r.ledgerOf(c, "lost").GetRecordCount() == 9 })
	eventually(t, "the record of the damaged manifest", func() bool {
		_, err := s.Head(bg, layout.RepairPrefix+strings.TrimPrefix(layout.Accepted(damaged), layout.AcceptedPrefix))
		return err == nil
	})
	r.tell(keys[1]) // the journal has it by now
	eventually(t, "the end of the checks", func() bool { return r.journal.checks.waiting() == 0 && r.checked("gone") > 0 })
	if r.checked("entered") != 1 || r.checked("known") < 2 || r.checked("unusable") != 1 || r.checked("dropped") != 0 {
		t.Errorf("entered %v, known %v, unusable %v, dropped %v", r.checked("entered"), r.checked("known"), r.checked("unusable"), r.checked("dropped"))
	}
	opened := 0
	must(t, storetest.Each(bg, s, layout.JournalOpenPrefix, func(objstore.Info) error { opened++; return nil }))
	if opened != 2 { // of the answered batch, and of what was entered
		t.Errorf("%d runs:\n%s", opened, journaltest.Keys(bg, s))
	}
	eventually(t, "the end of both runs", func() bool { return len(r.journal.tail.Runs()) == 0 })
}

// TestChecksAreBounded: what does not fit is left to the audits, and counted.
func TestChecksAreBounded(t *testing.T) {
	cfg, s := eventful(), newStore()
	cfg.Events.MaxWaiting, cfg.Events.CheckAfter = 2, time.Hour
	r := start(t, cfg, s)
	for i := range uint64(5) {
		r.tell(layout.Accepted(batch("a", i, i)))
		r.tell(layout.Accepted(batch("a", i, i)))
	}
	if r.journal.checks.waiting() != 2 || r.checked("dropped") != 6 {
		t.Errorf("%d wait, %v dropped", r.journal.checks.waiting(), r.checked("dropped"))
	}
}

// lateGets fails the reads of manifests while it is on.
type lateGets struct {
	objstore.Store
	on atomic.Bool
}

func (l *lateGets) Get(ctx context.Context, key string, o objstore.GetOptions) ([]byte, objstore.Info, error) {
	if l.on.Load() && strings.HasPrefix(key, layout.AcceptedPrefix) {
		return nil, objstore.Info{}, &objstore.Error{Op: "get", Key: key, Err: objstore.ErrUnavailable}
	}
	return l.Store.Get(ctx, key, o)
}

// TestChecksAreTriedAgain: a store that does not answer is no proof that there is nothing.
func TestChecksAreTriedAgain(t *testing.T) {
	s := &lateGets{Store: newStore()}
	must(t, journaltest.Complete(bg, s, testAuthority))
	s.on.Store(true)
	id := batch("a", 1, 9)
	plantBatch(t, s, id)
	r := start(t, eventful(), s)
	c := r.client()
	r.tell(layout.Accepted(id))
	eventually(t, "two attempts", func() bool { return r.checked("failed") >= 2 })
	s.on.Store(false)
	eventually(t, "the batch", func() bool { return r.ledgerOf(c, "a").GetRecordCount() == 9 })
}

// ordered notes whether the journal was written when a manifest is read.
type ordered struct {
	objstore.Store
	last    string
	written atomic.Bool
	read    atomic.Bool
	early   atomic.Bool // the manifest was read after something was written
}

func (o *ordered) Create(ctx context.Context, key string, body []byte, p objstore.PutOptions) (objstore.Info, error) {
	if strings.HasPrefix(key, layout.JournalOpenPrefix) {
		o.written.Store(true)
	}
	return o.Store.Create(ctx, key, body, p)
}

func (o *ordered) Get(ctx context.Context, key string, g objstore.GetOptions) ([]byte, objstore.Info, error) {
	if key == o.last && !o.read.Load() {
		o.early.Store(o.written.Load())
		o.read.Store(true)
	}
	return o.Store.Get(ctx, key, g)
}

// TestChecksAreWrittenInParts: of very many that are due, which the pace puts off, the first are in the journal before the last
// is read.
func TestChecksAreWrittenInParts(t *testing.T) {
	last := batch("gone", 9999, 9999)
	s := &ordered{Store: newStore(), last: layout.Accepted(last)}
	must(t, journaltest.Complete(bg, s, testAuthority))
	id := batch("lost", 1, 9)
	plantBatch(t, s, id)
	k := start(t, eventful(), s).journal
	planted := time.Now()
	eventually(t, "the journal, read through the manifest", func() bool { _, through, ready := k.status(); return ready && through.After(planted) })
	s.written.Store(false)
	due := k.monotonic() + int64(200*time.Millisecond)
	k.checks.add(id, due)
	for i := range uint64(checkAtOnce) {
		k.checks.add(batch("gone", i, i), due)
	}
	k.checks.add(last, due)
	eventually(t, "the last one is read", s.read.Load)
	if !s.early.Load() {
		t.Error("nothing is written before all of them are read")
	}
}
