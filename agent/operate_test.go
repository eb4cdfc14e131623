package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/agent/input/scrape"
	"lightmetrics.dev/lightmetrics/agent/send/sendtest"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
)

func post(t *testing.T, url string, header http.Header) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if h := header.Get("Host"); h != "" {
		req.Host = h
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode
}

// An agent tells collectors where people find what it has parked.
func TestWhereabouts(t *testing.T) {
	asked := make(chan *ingestv1.SettleConflictsRequest, 16)
	cfg := testConfig(t, collector(t, &sendtest.Collector{
		OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
			reply(sendtest.Answer(b, ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT, ""))
			return nil
		},
		OnSettle: func(req *ingestv1.SettleConflictsRequest) (*ingestv1.SettleConflictsResponse, error) {
			select {
			case asked <- req:
			default:
			}
			return nil, errors.New("later")
		},
	}))
	cfg.Send.SettleInterval = time.Millisecond
	port, err := proc.Reserve(0)
	if err != nil {
		t.Fatal(err)
	}
	cfg.HTTP.Listen = port.Addr
	port.Release()
	start(t, cfg)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-asked:
		if r.GetHost() != host || r.GetPage() != "http://"+cfg.HTTP.Listen || r.GetDirectory() != filepath.Join(cfg.DataDir, "queue", "parked") {
			t.Errorf("%v", r)
		}
		p := r.GetParked()[0]
		if _, err := os.Stat(filepath.Join(r.GetDirectory(), fmt.Sprintf("%020d-%020d-%x.lmbatch", p.GetSeqStart(), p.GetSeqEnd(), p.GetFrameSha256()[:8]))); err != nil {
			t.Error(err)
		}
	case <-testContext(t).Done():
		t.Fatal("no collector was asked")
	}
}

// TestOperateAsides: a conflict and a reject show up everywhere, and an operator settles both.
func TestOperateAsides(t *testing.T) {
	store := sendtest.NewStore()
	var mu sync.Mutex
	n := 0
	cfg := testConfig(t, collector(t, &sendtest.Collector{Store: store, OnFrame: func(b []byte, reply func(*ingestv1.BatchResult)) error {
		mu.Lock()
		defer mu.Unlock()
		switch n++; n {
		case 1:
			r := sendtest.Answer(b, ingestv1.BatchStatus_BATCH_STATUS_IDENTITY_CONFLICT, "")
			other := identity.Sum([]byte("other"))
			r.Conflict = &ingestv1.Conflict{AcceptedSha256: other[:], CollectorId: "c9"}
			reply(r)
		case 2:
			reply(sendtest.Answer(b, ingestv1.BatchStatus_BATCH_STATUS_REJECTED, "BAD_LABELS"))
		default:
			reply(store.Accept(b))
		}
		return nil
	}}))
	cfg.HTTP.Token = "s3cret"
	a, _ := start(t, cfg)
	if _, err := store.Wait(testContext(t), 2); err != nil {
		t.Fatal(err)
	}
	base := "http://" + a.HTTPAddr()
	var st agent.Status
	getJSON(t, base+"/status", &st)
	if len(st.Parked) != 1 || len(st.DeadLetters) != 1 || len(st.Alerts) != 2 || st.Parked[0].AcceptedBy != "c9" {
		t.Fatalf("status: %+v", st)
	}
	if m := getText(t, base+"/metrics"); !strings.Contains(m, "lightmetrics_agent_conflicts_parked 1") {
		t.Error("no alert metric")
	}
	if page := getText(t, base+"/"); !strings.Contains(page, st.Parked[0].ID) || !strings.Contains(page, "BAD_LABELS") {
		t.Error("the page does not show them")
	}
	if c := getText(t, base+"/config"); strings.Contains(c, "s3cret") {
		t.Error("/config shows the token")
	}
	auth := func(kv ...string) http.Header {
		h := http.Header{"Authorization": {"Bearer s3cret"}}
		for i := 0; i < len(kv); i += 2 {
			h.Set(kv[i], kv[i+1])
		}
		return h
	}
	accept := base + "/conflicts/" + st.Parked[0].ID + "/accept-existing"
	for what, h := range map[string]http.Header{
		"no token":      {},
		"wrong token":   {"Authorization": {"Bearer x"}},
		"a browser":     auth("Origin", base),
		"a rebound DNS": auth("Host", "evil.example:4320"),
	} {
		want := http.StatusForbidden
		if h.Get("Host") != "" {
			want = http.StatusMisdirectedRequest
		}
		if code := post(t, accept, h); code != want {
			t.Errorf("%s: %d", what, code)
		}
	}
	if len(a.Conflicts()) != 1 {
		t.Fatal("a refused request changed something")
	}
	for _, c := range []struct {
		url  string
		want int
	}{
		{accept, 200}, {accept, 404},
		{base + "/dead-letters/" + st.DeadLetters[0].ID + "/requeue", 200},
		{base + "/dead-letters/nothing/drop", 404},
	} {
		if code := post(t, c.url, auth()); code != c.want {
			t.Errorf("%s: %d, want %d", c.url, code, c.want)
		}
	}
	requeued := st.DeadLetters[0].Identity()
	ctx := testContext(t)
	for n := 3; store.Frame(requeued) == nil; n++ {
		if _, err := store.Wait(ctx, n); err != nil {
			t.Fatalf("the requeued batch is not accepted: %v", err)
		}
	}
	getJSON(t, base+"/status", &st)
	if len(st.Parked)+len(st.DeadLetters)+len(st.Alerts) != 0 {
		t.Errorf("status after settling: %+v", st)
	}
	for _, path := range []string{"/conflicts", "/dead-letters"} {
		if got := strings.TrimSpace(getText(t, base+path)); got != "[]" {
			t.Errorf("%s without any: %s", path, got)
		}
	}
}

// closedAddress is one where nobody listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	addrs, err := proc.Fixed(1)
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0]
}

// TestOutageAndRestart: collectors are away, the agent is restarted meanwhile, and everything
// arrives in order when they are back.
func TestOutageAndRestart(t *testing.T) {
	store := sendtest.NewStore()
	addr := closedAddress(t)
	cfg := testConfig(t, addr)
	cfg.DrainTimeout = 10 * time.Millisecond
	cfg.Batch.MaxRecords = 50 // several batches a read
	for range 3 {
		a, stop := start(t, cfg)
		before := a.Status().Boot.NextSeq
		for ctx := testContext(t); a.Status().Boot.NextSeq < before+200; {
			if ctx.Err() != nil {
				t.Fatal("nothing is queued")
			}
			time.Sleep(5 * time.Millisecond)
		}
		stop()
	}
	cfg.Host.Enabled = false
	a, _ := start(t, cfg)
	want := a.Status()
	if want.Queue.Pending < 12 {
		t.Fatalf("only %d batches are pending", want.Queue.Pending)
	}
	back := &sendtest.Collector{Store: store}
	if _, err := back.Start(addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(back.Stop)
	ids, err := store.Wait(testContext(t), want.Queue.Pending)
	if err != nil {
		t.Fatal(err)
	}
	if next := checkContiguous(t, ids, 1); next != want.Boot.NextSeq {
		t.Errorf("accepted up to %d, queued up to %d", next-1, want.Boot.NextSeq-1)
	}
}

// TestMemory: 1,000 scraped series and this host, with the collector and the target in the
// same process, stay far below the goal of 64 MiB for the agent alone.
func TestMemory(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		for i := range 1000 {
			fmt.Fprintf(w, "metric_%d{label=\"value_%d\",path=\"/some/path\"} %d\n", i%50, i, time.Now().UnixNano())
		}
	}))
	defer app.Close()
	store := sendtest.NewStore()
	cfg := testConfig(t, collector(t, &sendtest.Collector{Store: store}))
	cfg.Interval = 20 * time.Millisecond
	cfg.Batch.MaxAge = 100 * time.Millisecond
	cfg.Scrape = []scrape.Target{{Job: "app", URL: config.URL(app.URL)}}
	_, stop := start(t, cfg)
	ids, err := store.Wait(testContext(t), 20)
	if err != nil {
		t.Fatal(err)
	}
	rss := rssBytes(t)
	stop()
	records := uint64(0)
	for _, id := range ids {
		records += id.Count()
	}
	t.Logf("resident memory of the whole test process after %d batches with %d records: %.1f MiB", len(ids), records, float64(rss)/(1<<20))
	if raceEnabled {
		return // the detector's own memory is not the agent's
	}
	if rss > 96<<20 {
		t.Errorf("resident memory is %d bytes", rss)
	}
}

func rssBytes(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("no /proc here to read the resident memory from")
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// The status is JSON that a client can rely on.
func TestStatusKeys(t *testing.T) {
	b, err := json.Marshal(agent.Status{})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{`"boot"`, `"queue"`, `"sender"`, `"parked"`, `"dead_letters"`, `"alerts"`, `"pending_batches"`, `"next_seq"`, `"collectors"`} {
		if !strings.Contains(string(b), key) {
			t.Errorf("no %s in %s", key, b)
		}
	}
}
