package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs/sqstest"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/load"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/test/peers"
)

// forwarder gets the webhook of the embedded store, and puts its events into queues as AWS would, and worse: in all envelopes,
// some never, some twice, in any order.
type forwarder struct {
	t      *testing.T
	queues []string

	mu                     sync.Mutex
	rnd                    *rand.Rand
	faithful               bool
	late                   []string // messages that are sent once more, later
	sent, repeated, missed int
}

func (f *forwarder) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	var m struct{ Records []json.RawMessage }
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err != nil {
		f.t.Errorf("webhook: %v", err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.late
	f.late = nil
	for _, record := range m.Records {
		if !ofInterest.Match(record) && f.rnd.IntN(10) > 0 {
			continue // as a notification with prefixes does, which saves time here
		}
		n := f.rnd.IntN(100)
		if !f.faithful && n < 25 {
			f.missed++
			continue
		}
		message := f.wrap(record)
		out = append(out, message)
		if n >= 75 {
			f.late, f.repeated = append(f.late, message), f.repeated+1
		}
	}
	if len(out) > 0 && f.rnd.IntN(20) == 0 {
		out = append(out, "no event", `{"Service":"Amazon S3","Event":"s3:TestEvent","Bucket":"lightmetrics"}`)
	}
	f.rnd.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	var g errgroup.Group
	g.SetLimit(8)
	for _, message := range out {
		for _, q := range f.queues {
			// Also after the webhook's sender has given up.
			g.Go(func() error { return sqstest.Send(context.WithoutCancel(r.Context()), q, message) })
		}
	}
	if err := g.Wait(); err != nil {
		f.t.Errorf("queue: %v", err)
	}
	f.sent += len(out)
}

var ofInterest = regexp.MustCompile(`"key":"(journal/v1/(open/|run)|accepted/v1/)`)

// wrap puts a record of S3's event JSON into an envelope.
func (f *forwarder) wrap(record json.RawMessage) string {
	plain := `{"Records":[` + string(record) + `]}`
	bridge := func() string {
		var r struct {
			EventTime string
			S3        struct {
				Bucket struct{ Name string }
				Object struct{ Key string }
			}
		}
		if err := json.Unmarshal(record, &r); err != nil {
			f.t.Errorf("record: %v", err)
		}
		key, err := url.QueryUnescape(r.S3.Object.Key)
		if err != nil {
			f.t.Errorf("key: %v", err)
		}
		return text(map[string]any{"version": "0", "detail-type": "Object Created", "source": "aws.s3", "time": r.EventTime,
			"detail": map[string]any{"bucket": map[string]any{"name": r.S3.Bucket.Name}, "object": map[string]any{"key": key}}})
	}
	sns := func(message string) string {
		return text(map[string]any{"Type": "Notification", "TopicArn": "arn:aws:sns:us-east-1:123456789012:x", "Message": message})
	}
	switch f.rnd.IntN(4) {
	case 0:
		return plain
	case 1:
		return sns(plain)
	case 2:
		return bridge()
	}
	return sns(bridge())
}

func text(v map[string]any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings only
	}
	return string(b)
}

// TestEventsOfTheBucket: nobody watches a collector or a reconciler, and the query node's next poll is an hour away. The events of the
// store, which come through queues, lost, repeated and reordered, show everything all the same, once; and a batch whose collector was
// killed between manifest and journal, and which nobody sends again.
func TestEventsOfTheBucket(t *testing.T) {
	t.Parallel()
	const rows = 20 // of a frame that is made here, in two series
	ctx := within(t, 2*time.Minute)
	endpoint := peers.StartQueues(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, queues of %s", seed, endpoint)
	f := &forwarder{t: t, rnd: rand.New(rand.NewPCG(seed, 7))}
	queue := map[string]string{}
	for _, name := range []string{"reconciler", "query"} {
		u, err := sqstest.CreateQueue(ctx, endpoint, name)
		must(t, err)
		queue[name] = u
		f.queues = append(f.queues, u)
	}
	hook := httptest.NewServer(f)
	t.Cleanup(hook.Close)
	dying := false
	c := newCluster(t, cluster.Options{Collectors: 2, Adjust: func(process string, s map[string]any) {
		switch process {
		case "objectstore":
			s["webhooks"] = []map[string]any{{"name": "events", "bucket": "lightmetrics", "url": hook.URL}}
		case "reconciler":
			s["events"] = map[string]any{"check_after": "1s", "queue": map[string]any{"url": queue[process]}}
		case "query":
			s["events"] = map[string]any{"queue": map[string]any{"url": queue[process]}}
			follow := s["follow"].(map[string]any)
			delete(follow, "watch")
			follow["poll_interval"], follow["idle_interval"], s["stale_after"] = "1h", "1h", "3h"
		default:
			delete(s, "notify")
		}
	}, Env: func(process string) []string {
		if dying && process == "collector-2" {
			return []string{"LIGHTMETRICS_FAILPOINTS=ingest.store.create.accepted.after=kill"}
		}
		return nil
	}})
	must(t, c.StartStore(ctx))
	must(t, c.StartCollector(ctx, 0))
	must(t, c.StartReconciler(ctx))
	must(t, c.StartQuery(ctx))

	fleet := load.StartFleet(ctx, c, load.FleetOptions{Seed: seed, Senders: 2, Addresses: c.Addr.Collectors[:1]})
	time.Sleep(500 * time.Millisecond)
	sent, err := fleet.Stop()
	must(t, err)
	f.mu.Lock()
	f.faithful = true
	f.mu.Unlock()

	dying = true
	must(t, c.StartCollector(ctx, 1))
	lost := identity.Boot{Agent: "lost", Boot: "boot"}
	body := makeFrame(t, lost, "lost", 1, rows/2, time.Now().Add(-time.Minute), 1)
	pctx, giveUp := context.WithTimeout(ctx, time.Second)
	defer giveUp()
	if outcome, err := (&load.Poster{Spool: "s"}).Post(pctx, body, c.Addr.Collectors[1].HTTP); err == nil {
		t.Fatalf("a collector that was killed answers %s", outcome)
	}
	// The last segment of the load may be one whose event was lost: the next one's names the run beyond it.
	after := makeFrame(t, identity.Boot{Agent: "after", Boot: "boot"}, "after", 1, rows/2, time.Now().Add(-time.Minute), 1)
	if outcome, err := (&load.Poster{Spool: "s"}).Post(ctx, after, c.Addr.Collectors[0].HTTP); err != nil || outcome != load.Accepted {
		t.Fatal(outcome, err)
	}
	must(t, cluster.Poll(ctx, "every sample, once", func() (bool, error) {
		n, _, err := c.CountSamples(ctx, time.Now())
		return err == nil && int(n) == sent.Count+2*rows, fmt.Errorf("%v of %d samples: %v", n, sent.Count+2*rows, err)
	}))
	// Polls come at the start, and for runs that nobody knew: of the second collector's and of what the reconciler entered.
	seen := func(what string) float64 { return metric(ctx, t, c.Addr.QueryHTTP, what) }
	if n := metric(ctx, t, c.Addr.ReconcilerHTTP, `lightmetrics_reconciler_event_checks_total{result="entered"}`); n != 1 {
		t.Errorf("%v batches were entered", n)
	}
	polls, segments := seen(`lightmetrics_query_journal_polls_total{outcome="ok"}`), seen(`lightmetrics_event_objects_total{kind="segment",source="queue"}`)
	f.mu.Lock()
	t.Logf("%d batches; %d messages to each queue, %d repeated, %d events lost; the query node took %v segments from events and made %v polls", len(sent.Acked)+2,
		f.sent, f.repeated, f.missed, segments, polls)
	if f.missed == 0 || f.repeated == 0 {
		t.Error("nothing was lost or repeated")
	}
	f.mu.Unlock()
	// And with a node that starts from the bucket: fsck, and each batch that was acknowledged.
	must(t, cluster.Stop(&c.Query))
	must(t, c.StartQuery(ctx))
	_, err = load.Check(ctx, c, sent)
	must(t, err)
}
