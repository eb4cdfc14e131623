package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs/sqstest"
	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
)

// TestQueueOverMoto: the client and the consumer over a queue server of other hands, and the envelopes that services put
// around events, as it makes them.
func TestQueueOverMoto(t *testing.T) {
	endpoint := StartMoto(t)
	sqstest.Run(t, endpoint)
	ctx := t.Context()
	queue := func(t *testing.T, name string) (*sqs.Queue, string) {
		u, err := sqstest.CreateQueue(ctx, endpoint, name)
		if err != nil {
			t.Fatal(err)
		}
		cfg := events.DefaultConfig().Queue
		cfg.URL, cfg.AccessKeyID, cfg.SecretAccessKey = u, "k", "s"
		q, err := sqs.Open(ctx, cfg, s3.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.Close)
		return q, "arn:aws:sqs:us-east-1:123456789012:" + name
	}
	// want takes a message, which must say that an object was created.
	want := func(t *testing.T, q *sqs.Queue, bucket, key string) {
		t.Helper()
		for {
			ms, err := q.Receive(ctx)
			if err != nil || len(ms) == 0 {
				t.Fatalf("no event came: %v", err)
			}
			if _, err := q.Delete(ctx, ms); err != nil {
				t.Error(err)
			}
			for _, queued := range ms {
				m, err := events.Parse([]byte(queued.Body))
				if err != nil {
					t.Fatalf("%v\n%s", err, queued.Body)
				}
				if m.Test {
					continue
				}
				// What this emulator writes for S3 itself is no time of RFC 3339.
				if len(m.Created) != 1 || m.Created[0].Bucket != bucket || m.Created[0].Key != key || !m.Created[0].At.IsZero() && time.Since(m.Created[0].At).Abs() > time.Hour {
					t.Errorf("%+v, of\n%s", m, queued.Body)
				}
				return
			}
		}
	}
	key := journal.Position{Run: journal.RunID{7}, Segment: 3}.Key()
	for _, raw := range []string{"false", "true"} {
		t.Run("SNS, raw delivery "+raw, func(t *testing.T) {
			name := "sns-raw-" + raw
			q, arn := queue(t, name)
			topic := query(t, endpoint, "sns", "TopicArn", url.Values{"Action": {"CreateTopic"}, "Name": {name}})
			query(t, endpoint, "sns", "", url.Values{"Action": {"Subscribe"}, "TopicArn": {topic}, "Protocol": {"sqs"}, "Endpoint": {arn},
				"Attributes.entry.1.key": {"RawMessageDelivery"}, "Attributes.entry.1.value": {raw}})
			query(t, endpoint, "sns", "", url.Values{"Action": {"Publish"}, "TopicArn": {topic}, "Message": {sqstest.Segment("metrics", journal.Position{Run: journal.RunID{7}, Segment: 3})}})
			want(t, q, "metrics", key)
		})
	}
	t.Run("EventBridge", func(t *testing.T) {
		q, arn := queue(t, "bridge")
		bridge := func(action string, in any) {
			t.Helper()
			if err := sqstest.Do(ctx, endpoint, "events", "AWSEvents."+action, in, nil); err != nil {
				t.Fatal(err)
			}
		}
		bridge("PutRule", map[string]any{"Name": "created", "EventPattern": `{"source":["aws.s3"],"detail-type":["Object Created"]}`})
		bridge("PutTargets", map[string]any{"Rule": "created", "Targets": []any{map[string]any{"Id": "1", "Arn": arn}}})
		detail, _ := json.Marshal(map[string]any{"version": "0", "bucket": map[string]any{"name": "metrics"}, "object": map[string]any{"key": "prod/a key+x", "size": 1}, "reason": "PutObject"})
		bridge("PutEvents", map[string]any{"Entries": []any{map[string]any{"Source": "aws.s3", "DetailType": "Object Created", "Detail": string(detail)}}})
		want(t, q, "metrics", "prod/a key+x")
	})
	t.Run("S3 itself", func(t *testing.T) {
		q, arn := queue(t, "direct")
		put(ctx, t, endpoint+"/metrics", "")
		put(ctx, t, endpoint+"/metrics?notification", `<NotificationConfiguration><QueueConfiguration><Id>x</Id><Queue>`+arn+`</Queue><Event>s3:ObjectCreated:*</Event></QueueConfiguration></NotificationConfiguration>`)
		put(ctx, t, endpoint+"/metrics/"+strings.ReplaceAll(key, "=", "%3D"), "segment")
		want(t, q, "metrics", key)
	})
}

// query asks by the protocol of older services, and gives one element of the answer.
func query(t *testing.T, endpoint, service, element string, form url.Values) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint+"/", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	body := do(t, req, service)
	if element == "" {
		return ""
	}
	m := regexp.MustCompile("<" + element + ">([^<]*)</").FindStringSubmatch(body)
	if m == nil {
		t.Fatalf("no %s in %s", element, body)
	}
	return m[1]
}

func put(ctx context.Context, t *testing.T, url, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	do(t, req, "s3")
}

func do(t *testing.T, req *http.Request, service string) string {
	t.Helper()
	sqstest.Sign(req, service)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	if err != nil {
		t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	return string(body)
}
