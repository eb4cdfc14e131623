package agent_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/agent/input/scrape"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

// waitFor waits until the agent's status is as wanted.
func waitFor(t *testing.T, a *agent.Agent, what string, ok func(agent.Status) bool) agent.Status {
	t.Helper()
	for ctx := testContext(t); ; time.Sleep(2 * time.Millisecond) {
		st := a.Status()
		if ok(st) {
			return st
		}
		if ctx.Err() != nil {
			t.Fatalf("%s: %+v", what, st)
		}
	}
}

// TestAFaultIsAnAlert: a fault that only a person can mend is in /status, on the page as
// failing, and in the metrics; it goes when it is mended.
func TestAFaultIsAnAlert(t *testing.T) {
	pki := sendtest.NewPKI(t)
	store := sendtest.NewStore()
	refuse := make(chan struct{})
	cfg := testConfig(t, collector(t, &sendtest.Collector{Store: store, OnHello: func(*ingestv1.Hello) (*ingestv1.Welcome, error) {
		select {
		case <-refuse:
			return &ingestv1.Welcome{}, nil
		default:
			return nil, rpc.Failure{Code: codes.Unauthenticated, Reason: rpc.ReasonUnauthenticated, Message: "unknown token"}.Err()
		}
	}}))
	soon, key := pki.Issue("scraper", time.Now().Add(time.Hour))
	cfg.Scrape = []scrape.Target{{Job: "x", URL: config.URL("https://" + closedAddress(t) + "/"),
		TLS: tlsfile.Client{Enabled: true, CertFile: soon, KeyFile: key}}}
	a, _ := start(t, cfg)
	st := waitFor(t, a, "no alert", func(st agent.Status) bool { return len(st.Alerts) == 2 })
	if st.Alerts[0].ID != "UNAUTHENTICATED" || st.Alerts[1].ID != "CERTIFICATE_EXPIRES" || !strings.Contains(st.Alerts[1].Message, soon) {
		t.Errorf("alerts %+v", st.Alerts)
	}
	base := "http://" + a.HTTPAddr()
	page, metrics := getText(t, base+"/"), getText(t, base+"/metrics")
	if !strings.Contains(page, ">failing<") || strings.Contains(page, "standby") || !strings.Contains(page, "UNAUTHENTICATED") {
		t.Errorf("the page:\n%s", page)
	}
	for _, want := range []string{`lightmetrics_agent_alert{id="UNAUTHENTICATED"} 1`, `lightmetrics_agent_alert{id="NO_COLLECTOR"} 0`,
		`lightmetrics_agent_collector_failing{collector="` + cfg.Send.Collectors[0] + `"} 1`, "lightmetrics_agent_disconnected_seconds ",
		"lightmetrics_agent_client_certificate_expiry_timestamp_seconds{file=", "lightmetrics_agent_clock_offset_seconds 0",
		"lightmetrics_agent_skipped_records_total 0", "lightmetrics_agent_queue_refusing 0", `lightmetrics_agent_queue_batches{state="dead"} 0`,
		"lightmetrics_agent_answer_seconds_count", "lightmetrics_agent_conflicts_parked 0", "lightmetrics_agent_lag_seconds "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %s", want)
		}
	}
	close(refuse)
	waitFor(t, a, "the alert stays", func(st agent.Status) bool { return len(st.Alerts) == 1 })
	if _, err := store.Wait(testContext(t), 1); err != nil {
		t.Fatal(err)
	}
	if m := getText(t, base+"/metrics"); !strings.Contains(m, "lightmetrics_agent_disconnected_seconds 0\n") {
		t.Error("a connected agent counts as disconnected")
	}
}

// TestWhatAFullQueueRefusesIsAGap: the numbers of dropped samples are missing from what
// collectors accept later, exactly as many as were counted, and a restart changes nothing.
func TestWhatAFullQueueRefusesIsAGap(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for i := range 500 {
			fmt.Fprintf(w, "metric{i=\"%d\"} %d\n", i, time.Now().UnixNano()*int64(i+7)%1000003)
		}
	}))
	defer app.Close()
	addr := closedAddress(t)
	cfg := testConfig(t, addr)
	cfg.Host.Enabled = false
	cfg.Interval, cfg.Batch.MaxAge, cfg.DrainTimeout = 10*time.Millisecond, 20*time.Millisecond, 0
	cfg.Queue.SegmentBytes, cfg.Queue.MaxBytes = 64<<10, 256<<10
	cfg.Scrape = []scrape.Target{{Job: "app", URL: config.URL(app.URL)}}
	a, stop := start(t, cfg)
	st := waitFor(t, a, "never full", func(st agent.Status) bool { return st.Queue.Refusing && st.Queue.SkippedRecords > 1000 })
	if len(st.Alerts) == 0 || !strings.Contains(fmt.Sprint(st.Alerts), "QUEUE_REFUSES") {
		t.Errorf("alerts %v", st.Alerts)
	}
	stop()
	store := sendtest.NewStore()
	back := &sendtest.Collector{Store: store}
	if _, err := back.Start(addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(back.Stop)
	a, stop = start(t, cfg)
	skipped := waitFor(t, a, "not drained", func(st agent.Status) bool {
		return st.Queue.Pending == 0 && !st.Queue.Refusing && st.Sender.LastAccepted != nil
	}).Queue.SkippedRecords
	ids, _ := store.Accepted()
	if _, err := store.Wait(testContext(t), len(ids)+3); err != nil { // one behind the gap for sure
		t.Fatal(err)
	}
	stop()
	ids, _ = store.Accepted()
	missing, next := uint64(0), uint64(1)
	for _, id := range ids {
		missing += id.SeqStart - next
		next = id.SeqEnd + 1
	}
	if skipped == 0 || missing != skipped {
		t.Errorf("%d numbers are missing, %d records were refused", missing, skipped)
	}
}
