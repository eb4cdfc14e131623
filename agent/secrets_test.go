package agent_test

import (
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input/scrape"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// TestNoPageShowsCredentials: what a scrape's URL and settings hold is on no path of the
// agent's server, and in none of its metrics and series.
func TestNoPageShowsCredentials(t *testing.T) {
	store := sendtest.NewStore()
	cfg := testConfig(t, collector(t, &sendtest.Collector{Store: store}))
	away := closedAddress(t)
	cfg.HTTP.Token = "hunter2-http"
	cfg.Send.Client.Token, cfg.Send.Client.TokenOverPlaintext = "hunter2-send", true
	cfg.Scrape = []scrape.Target{
		{Job: "url", URL: config.URL("http://u:hunter2-url@" + away + "/metrics?token=hunter2-query&match[]=up")},
		{Job: "bearer", URL: config.URL("http://" + away + "/"), BearerToken: "hunter2-bearer"},
		{Job: "basic", URL: config.URL("http://" + away + "/"), Username: "u", Password: "hunter2-basic"},
	}
	a, stop := start(t, cfg)
	ctx := testContext(t)
	for tried := 0; tried < len(cfg.Scrape) && ctx.Err() == nil; time.Sleep(time.Millisecond) {
		tried = 0
		for _, s := range a.Status().Inputs {
			if s.Input == "scrape" && s.LastError != "" {
				tried++
			}
		}
	}
	for _, path := range []string{"/", "/status", "/config", "/metrics", "/conflicts"} {
		text := getText(t, "http://"+a.HTTPAddr()+path)
		if at := strings.Index(text, "hunter2"); at >= 0 {
			t.Errorf("%s shows …%s…", path, text[max(0, at-60):min(len(text), at+30)])
		}
		if path == "/config" && !strings.Contains(text, "match[]=up") {
			t.Errorf("/config hides more than credentials: %s", text)
		}
	}
	stop()
	ids, _ := store.Accepted()
	for _, id := range ids {
		if strings.Contains(string(store.Frame(id)), "hunter2") {
			t.Errorf("%s has a credential in it", id)
		}
	}
	got := values(t, store, ids, "job", "instance")
	if v, ok := got["up job=url instance="+away]; !ok || v != 0 {
		t.Errorf("no up of the target: %v", got)
	}
}
