package badinput

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/reconciler"
)

const eventSecret = "event-secret-0123456789"

// webhookCase is POST /v1/events to a reconciler that wants a secret. The body is an
// event that would be queued, and the header Authorization is the right one, unless the
// case says another.
type webhookCase struct {
	named `yaml:",inline"`
	// Auth are the values of Authorization, one a field: {secret} is the right one, {fill}
	// is repeat times "a", {ff} a byte that is no UTF-8. An empty list sends none.
	Auth   *[]string `yaml:"auth"`
	Key    string    `yaml:"key"` // name of that header
	Repeat int       `yaml:"repeat"`
	H      []string  `yaml:"h"`
	Query  string    `yaml:"query"`
	Recipe string    `yaml:"recipe"`
	Status int       `yaml:"status"`
	Error  bool      `yaml:"error"` // the answer says why
}

// TestWebhookSecret posts events with bad secrets, and bad events with the right one.
func TestWebhookSecret(t *testing.T) {
	store := memStore()
	cfg := reconciler.DefaultConfig()
	cfg.HTTP.Listen, cfg.GRPC.Listen, cfg.AuthorityID = "127.0.0.1:0", "127.0.0.1:0", authority
	cfg.Repairs.Interval = time.Hour
	cfg.Events.Secret, cfg.Events.MaxBody = config.Secret(eventSecret), 64<<10
	s, err := reconciler.New(cfg, reconciler.Deps{Store: store, Telemetry: quietTelemetry()})
	if err != nil {
		t.Fatal(err)
	}
	runService(t, s.Run, s.Ready())
	addr := s.HTTPAddr()
	eventually(t, "first scan", func() bool { return listing(t, store)["journal/v1/begin.json"] != "" })
	boundMemory(t, 64<<20)
	before := listing(t, store)
	const event = `{"Records":[{"eventName":"ObjectCreated:Put","s3":{"object":{"key":"accepted/v1/agent=61/boot=62/00000000000000000001-00000000000000000002.json"}}}]}`
	post := func(k webhookCase) (int, int, string) {
		body := []byte(event)
		if k.Recipe != "" {
			body = expand(t, k.Recipe, map[string][]byte{"{event}": body})
		}
		auth := []string{"Bearer {secret}"}
		if k.Auth != nil {
			auth = *k.Auth
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "POST /v1/events%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n", strings.ReplaceAll(k.Query, "{secret}", eventSecret), len(body))
		for _, v := range auth {
			v = strings.NewReplacer("{secret}", eventSecret, "{fill}", strings.Repeat("a", k.Repeat), "{ff}", "\xff").Replace(v)
			fmt.Fprintf(&b, "%s: %s\r\n", or(k.Key, "Authorization"), v)
		}
		for _, h := range k.H {
			b.WriteString(h + "\r\n")
		}
		b.WriteString("\r\n")
		b.Write(body)
		status, text, _ := rawAnswer(t, addr, http.MethodPost, b.Bytes(), false)
		var a struct {
			Queued, Known int
			Error         string
		}
		_ = json.Unmarshal(text, &a) // not all refusals are the webhook's own
		return status, a.Queued + a.Known, a.Error
	}
	for _, k := range load[webhookCase](t, "webhook") {
		t.Run(k.Name, func(t *testing.T) {
			status, taken, why := post(k)
			if status != k.Status || taken != 0 || (why != "") != k.Error {
				t.Errorf("got %d, %d taken, %q, want %d", status, taken, why, k.Status)
			}
			if strings.Contains(why, eventSecret) {
				t.Errorf("the secret is told: %s", why)
			}
		})
	}
	wantUnchanged(t, store, before)
	wantNoPanics(t)
	if status, taken, why := post(webhookCase{}); status != http.StatusOK || taken != 1 {
		t.Errorf("the right secret: %d, %d taken, %s", status, taken, why)
	}
}
