package events

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sample(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestParse reads a sample of each envelope, as AWS documents and sends them.
func TestParse(t *testing.T) {
	at := time.Date(2026, 11, 23, 8, 30, 0, 123e6, time.UTC)
	whole := at.Truncate(time.Second)
	two := []Event{
		{"metrics", "prod/journal/v1/open/00000000000000000000000000000001.lmj", at},
		{"metrics", "prod/a key+with=all/ü.json", at},
	}
	for name, want := range map[string]Message{
		"s3.json":               {Created: two, Other: 1},
		"s3-test.json":          {Test: true},
		"sns.json":              {Created: two[:1]},
		"sns-test.json":         {Test: true},
		"sns-eventbridge.json":  {Created: []Event{{"metrics", "prod/a key+with=all/ü.json", whole}}},
		"eventbridge.json":      {Created: []Event{{"metrics", "prod/a key+with=all/ü.json", whole}}},
		"eventbridge-gone.json": {Other: 1},
		"minio.json":            {Created: []Event{{"metrics", "prod/journal/v1/open/00000000000000000000000000000001.lmj", at}}},
		"ceph.json":             {Created: []Event{{"metrics", "prod/a key+with=all/ü.json", at}}},
		"embedded.json":         {Created: two},
	} {
		got, err := Parse(sample(t, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":           "",
		"no JSON":           "hello",
		"JSON of others":    `{"a": 1}`,
		"a list":            `[{"Records": []}]`,
		"no bucket":         `{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"object": {"key": "k"}}}]}`,
		"no key":            `{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}}}]}`,
		"a bad escape":      `{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "b"}, "object": {"key": "%zz"}}}]}`,
		"another source":    `{"source": "aws.ec2", "detail-type": "Object Created", "detail": {"bucket": {"name": "b"}, "object": {"key": "k"}}}`,
		"a detail of none":  `{"source": "aws.s3", "detail-type": "Object Created", "detail": {}}`,
		"a subscription":    `{"Type": "SubscriptionConfirmation", "SubscribeURL": "http://127.0.0.1/"}`,
		"text through SNS":  `{"Type": "Notification", "Message": "hello"}`,
		"SNS in SNS in SNS": `{"Type": "Notification", "Message": "{\"Type\": \"Notification\", \"Message\": \"{\\\"Type\\\": \\\"Notification\\\", \\\"Message\\\": \\\"{\\\\\\\"Event\\\\\\\": \\\\\\\"s3:TestEvent\\\\\\\"}\\\"}\"}"}`,
		"too long":          `{"Event": "s3:TestEvent"}` + strings.Repeat(" ", MaxMessage),
	} {
		if m, err := Parse([]byte(body)); !errors.Is(err, ErrUnknownMessage) {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// FuzzParse: no message is more than it says, whatever it is.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.json"))
	if err != nil || len(files) < 10 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		f.Add(sample(f, filepath.Base(name)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrUnknownMessage) || m.Created != nil {
				t.Errorf("%+v, %v", m, err)
			}
			return
		}
		for _, e := range m.Created {
			if e.Bucket == "" || e.Key == "" {
				t.Errorf("%+v", e)
			}
		}
		if len(m.Created)+m.Other > len(b) {
			t.Errorf("%d events in %d bytes", len(m.Created)+m.Other, len(b))
		}
	})
}
