package badinput

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/services/reconciler"
)

type eventCase struct {
	named  `yaml:",inline"`
	M      string `yaml:"m"`
	Body   string `yaml:"body"`
	Recipe string `yaml:"recipe"`
	Key    string `yaml:"key"` // an event of a created object with this key
	Status int    `yaml:"status"`
	// Ignored records, and Error whether the answer has one.
	Ignored int  `yaml:"ignored"`
	Error   bool `yaml:"error"`
}

// TestEvents posts bad S3 events to the reconciler's webhook.
func TestEvents(t *testing.T) {
	store := memStore()
	cfg := reconciler.DefaultConfig()
	cfg.HTTP.Listen, cfg.GRPC.Listen, cfg.AuthorityID = "127.0.0.1:0", "127.0.0.1:0", authority
	cfg.Repairs.Interval = time.Hour
	s, err := reconciler.New(cfg, reconciler.Deps{Store: store, Telemetry: quietTelemetry()})
	if err != nil {
		t.Fatal(err)
	}
	runService(t, s.Run, s.Ready())
	url := "http://" + s.HTTPAddr()
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ready := func() bool {
		resp, err := client.Get(url + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}
	eventually(t, "reconciler ready", ready)
	eventually(t, "first scan", func() bool { return listing(t, store)["journal/v1/begin.json"] != "" })
	boundMemory(t, 64<<20)
	before := listing(t, store)
	for _, k := range load[eventCase](t, "events") {
		t.Run(k.Name, func(t *testing.T) {
			body := []byte(k.Body)
			if k.Recipe != "" {
				body = expand(t, k.Recipe, nil)
			}
			if k.Key != "" {
				var e struct {
					Records []map[string]any
				}
				e.Records = []map[string]any{{"eventName": "ObjectCreated:Put", "s3": map[string]any{"object": map[string]any{"key": k.Key}}}}
				var err error
				if body, err = json.Marshal(e); err != nil {
					t.Fatal(err)
				}
			}
			req, err := http.NewRequest(or(k.M, http.MethodPost), url+"/v1/events", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			var a struct {
				Queued, Known, Ignored, Dropped int
				Error                           string
			}
			_ = json.Unmarshal(text, &a) // not all refusals are the webhook's own
			if resp.StatusCode != k.Status || a.Ignored != k.Ignored || (a.Error != "") != k.Error || a.Queued != 0 {
				t.Errorf("got %s %s, want %d, %d ignored", resp.Status, text, k.Status, k.Ignored)
			}
		})
	}
	wantUnchanged(t, store, before)
	wantNoPanics(t)
	if !ready() {
		t.Error("the reconciler is not ready any more")
	}
}
