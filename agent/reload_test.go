package agent_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/agent/input/scrape"
	"lightmetrics.dev/lightmetrics/agent/send"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// TestReloadExchangesScrapeTargets: a target that is gone is scraped no more, a new one is,
// one that stays goes on, and a target that is refused changes nothing.
func TestReloadExchangesScrapeTargets(t *testing.T) {
	counts := map[string]*atomic.Int64{}
	target := func(job string) scrape.Target {
		n := &atomic.Int64{}
		counts[job] = n
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "m %d\n", n.Add(1))
		}))
		t.Cleanup(srv.Close)
		return scrape.Target{Job: job, URL: config.URL(srv.URL), Interval: 20 * time.Millisecond}
	}
	scraped := func(job string) {
		t.Helper()
		n := counts[job]
		for from, end := n.Load(), time.Now().Add(deadline); n.Load() < from+2; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not scraped", job)
			}
		}
	}
	cfg := testConfig(t, collector(t, &sendtest.Collector{Store: sendtest.NewStore()}))
	cfg.Host.Enabled = false
	gone, stays, comes := target("gone"), target("stays"), target("comes")
	cfg.Scrape = []scrape.Target{gone, stays}
	a, stop := start(t, cfg)
	scraped("gone")
	scraped("stays")

	bad := cfg
	bad.Scrape = []scrape.Target{comes, {Job: "", URL: comes.URL}}
	if err := a.Reload(bad); err == nil {
		t.Error("a target without a job is taken")
	}
	scraped("gone")
	if n := counts["comes"].Load(); n != 0 {
		t.Errorf("a target of refused settings was scraped %d times", n)
	}

	next := cfg
	next.Scrape = []scrape.Target{stays, comes}
	if err := a.Reload(next); err != nil {
		t.Fatal(err)
	}
	last := counts["gone"].Load()
	scraped("comes")
	scraped("stays")
	if n := counts["gone"].Load(); n != last {
		t.Errorf("the target that is gone was scraped %d times more", n-last)
	}
	var st agent.Status
	getJSON(t, "http://"+a.HTTPAddr()+"/status", &st)
	if len(st.Inputs) != 2 || st.Inputs[0].Input != "scrape" || !strings.HasPrefix(st.Inputs[0].Name, "stays ") || !strings.HasPrefix(st.Inputs[1].Name, "comes ") {
		t.Errorf("status: %+v", st.Inputs)
	}
	stop()
}

// TestReloadTakesCollectors: a list of collectors that a reload gives is used, and one that is refused changes neither collectors nor
// inputs.
func TestReloadTakesCollectors(t *testing.T) {
	store := sendtest.NewStore()
	first, second := &sendtest.Collector{Store: store}, &sendtest.Collector{Store: store}
	cfg := testConfig(t, collector(t, first))
	fallback := collector(t, second)
	a, stop := start(t, cfg)
	defer stop()
	accepted := func() {
		t.Helper()
		list, _ := store.Accepted()
		if _, err := store.Wait(testContext(t), len(list)+2); err != nil {
			t.Fatal(err)
		}
	}
	accepted()
	bad := cfg
	bad.Send.Fallback = cfg.Send.Collectors
	bad.Host.Enabled = false
	if err := a.Reload(bad); err == nil {
		t.Error("a collector in both lists is taken")
	}
	if n := len(a.Status().Inputs); n != 1 {
		t.Errorf("%d inputs after settings that were refused", n)
	}
	next := cfg
	next.Send.Fallback, next.Send.FallbackAfter = []string{fallback}, 10*time.Millisecond
	if err := a.Reload(next); err != nil {
		t.Fatal(err)
	}
	accepted()
	if st := a.Status().Sender; len(st.Collectors) != 2 || st.List != send.Preferred || len(second.Hellos()) != 0 {
		t.Errorf("after the reload: %+v", st)
	}
	first.Stop()
	accepted()
	if st := a.Status().Sender; st.List != send.Fallback || st.Return == nil {
		t.Errorf("the fallback is not used: %+v", st)
	}
	page := getText(t, "http://"+a.HTTPAddr()+"/")
	if !strings.Contains(page, "The fallback has been used for") || !strings.Contains(page, "No preferred collector answers") {
		t.Errorf("the page does not say so:\n%s", page)
	}
}
