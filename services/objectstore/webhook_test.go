package objectstore_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

type event struct {
	EventName string
	EventTime time.Time
	S3        struct {
		Bucket struct{ Name string }
		Object struct {
			Key       string
			Size      int64
			ETag      string
			Sequencer string
			VersionID string `json:"versionId"`
		}
	}
}

// receiver keeps the events that it was sent; while down it answers 500.
type receiver struct {
	*httptest.Server
	down    atomic.Bool
	refused atomic.Int64
	mu      sync.Mutex
	events  []event
	news    chan struct{}
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{news: make(chan struct{}, 1)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		b, err := io.ReadAll(req.Body)
		var m struct{ Records []event }
		if err != nil || json.Unmarshal(b, &m) != nil || len(m.Records) == 0 || len(m.Records) > 100 || req.Header.Get("Authorization") != "Bearer hook" {
			t.Errorf("bad POST: %q %v", b, err)
		}
		if r.down.Load() {
			r.refused.Add(1)
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		r.mu.Lock()
		r.events = append(r.events, m.Records...)
		r.mu.Unlock()
		select {
		case r.news <- struct{}{}:
		default:
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// wait ends when every key was received, and gives the events.
func (r *receiver) wait(t *testing.T, keys []string) []event {
	t.Helper()
	deadline := time.After(patience)
	for {
		r.mu.Lock()
		have := map[string]bool{}
		for _, e := range r.events {
			k, err := url.QueryUnescape(e.S3.Object.Key)
			if err != nil {
				t.Error(err)
			}
			have[k] = true
		}
		all := append([]event(nil), r.events...)
		r.mu.Unlock()
		missing := 0
		for _, k := range keys {
			if !have[k] {
				missing++
			}
		}
		if missing == 0 {
			return all
		}
		select {
		case <-r.news:
		case <-deadline:
			t.Fatalf("%d of %d events did not come", missing, len(keys))
		}
	}
}

func TestWebhookGetsEveryEventThoughItWasDown(t *testing.T) {
	r := newReceiver(t)
	cfg := testConfig(t.TempDir())
	cfg.Webhooks = []objectstore.Webhook{{Name: "hook", URL: config.URL(r.URL), Prefix: "in/", Authorization: "Bearer hook"}}
	s := start(t, cfg)
	c := s.client()
	var keys []string
	add := func(n int) {
		for range n {
			k := fmt.Sprintf("in/ü %d+", len(keys))
			put(t, c, k, []byte("x"))
			put(t, c, fmt.Sprintf("out/%d", len(keys)), []byte("x"))
			keys = append(keys, k)
		}
	}
	add(30)
	r.wait(t, keys)
	r.down.Store(true)
	add(130) // a dead webhook does not hold PUTs up
	if _, err := c.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: aws.String(bucket), Key: &keys[0]}); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s = start(t, cfg)
	c = s.client()
	add(5)
	r.down.Store(false)
	last := ""
	for i, e := range r.wait(t, keys) {
		k, _ := url.QueryUnescape(e.S3.Object.Key)
		if e.EventName != "ObjectCreated:Put" || e.S3.Bucket.Name != bucket || len(k) < 3 || k[:3] != "in/" || e.S3.Object.Size != 1 ||
			e.S3.Object.ETag != "9dd4e461268c8034f5c8564e155c67a6" || e.EventTime.IsZero() {
			t.Errorf("event %d: %+v", i, e)
		}
		if seq := e.S3.Object.Sequencer; len(seq) != 16 || seq < last {
			t.Logf("event %d was sent again", i)
		} else {
			last = seq
		}
	}
}

// TestWebhookURLsAreNotShown: the address of a webhook may have a token in it, which /config, /metrics, the log and errors of
// settings leave out. Its position is kept under the whole address, as it was.
func TestWebhookURLsAreNotShown(t *testing.T) {
	const token, password = "t0ken-of-the-hook", "pa55word"
	r := newReceiver(t)
	at, err := url.Parse(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	at.User, at.RawQuery = url.UserPassword("hook", password), "token="+token
	cfg := testConfig(t.TempDir())
	cfg.Webhooks = []objectstore.Webhook{{URL: config.URL(at.String()), Authorization: "Bearer hook"}}
	s := start(t, cfg)
	put(t, s.client(), "k", []byte("x"))
	r.wait(t, []string{"k"})
	shown := ""
	for _, path := range []string{"/config", "/metrics", "/status"} {
		status, text := adminGet(t, s, path)
		if status != 200 || text == "" {
			t.Fatalf("%s: %d", path, status)
		}
		shown += text
	}
	if !strings.Contains(shown, `lightmetrics_objectstore_webhook_events_total{webhook="`) {
		t.Error("the webhook is not counted")
	}
	cfg.Webhooks = append(cfg.Webhooks, cfg.Webhooks[0])
	shown += fmt.Sprint(cfg.Validate())
	for _, secret := range []string{token, password, "Bearer"} {
		if i := strings.Index(shown, secret); i >= 0 {
			t.Errorf("%s is shown: %.200s", secret, shown[max(0, i-100):])
		}
	}
	hash := sha256.Sum256([]byte(at.String()))
	if _, err := os.Stat(filepath.Join(cfg.Dir, "webhooks", hex.EncodeToString(hash[:8])+".json")); err != nil {
		t.Errorf("the position has another name: %v", err)
	}
}
