package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/acceptance/journal"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

func TestDelaysHaveTheStatedShape(t *testing.T) {
	d := &delays{rng: rand.New(rand.NewPCG(latencySeed, 0))}
	all := make([]time.Duration, 20_000)
	for i := range all {
		all[i] = d.next()
	}
	slices.Sort(all)
	for q, want := range map[float64]time.Duration{0.5: delayP50, 0.9: delayP90} {
		if got := quantile(all, q); got < want*95/100 || got > want*105/100 {
			t.Errorf("p%.0f is %v, want %v", q*100, got, want)
		}
	}
	if got := quantile(all, 0.998); got < 4*delayP50 {
		t.Errorf("p99.8 is %v: no tail", got)
	}
}

func TestScrapeSums(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("# HELP a b\na{op=\"get\",family=\"x\"} 2\na{op=\"list\",family=\"y\"} 3e1\nab 7\nb 1\n"))
	}))
	defer srv.Close()
	s, err := scrape(context.Background(), strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	if all, list, b := s.sum("a"), s.sum("a", `op="list"`), s.sum("b"); all != 32 || list != 30 || b != 1 {
		t.Errorf("sums %v, %v, %v", all, list, b)
	}
}

// TestReplayIsWhatTheServerSees: the recorded requests reach a server with their bodies, each once.
func TestReplayIsWhatTheServerSees(t *testing.T) {
	seen := make(chan string, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := make([]byte, r.ContentLength)
		if _, err := r.Body.Read(b); err != nil && int64(len(b)) != r.ContentLength {
			t.Error(err)
		}
		if r.Header.Get("If-None-Match") != "*" || !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
			t.Errorf("header %v", r.Header)
		}
		if strings.HasSuffix(r.URL.Path, "/3") {
			w.WriteHeader(http.StatusPreconditionFailed)
		}
		seen <- r.URL.Path
	}))
	defer srv.Close()
	ps, err := record(context.Background(), bucketAt(srv.URL, bucket, "p/", "k", "s"), []string{"0", "1", "2"}, 64)
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimPrefix(srv.URL, "http://")
	got, err := ps.replay(context.Background(), addr, 2, time.Minute)
	if err != nil || len(got.acked) != 3 || len(seen) != 3 || len(got.times) != 3 {
		t.Fatalf("%+v, %v, %d requests", got, err, len(seen))
	}
	if ps, err = record(context.Background(), bucketAt(srv.URL, bucket, "p/", "k", "s"), []string{"3"}, 64); err != nil {
		t.Fatal(err)
	}
	if _, err := ps.replay(context.Background(), addr, 1, time.Minute); err == nil || !strings.Contains(err.Error(), "412") {
		t.Errorf("a refusal gave %v", err)
	}
}

func TestPage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "b.md")
	rs := []Result{
		{Name: "store/x", Value: 1, Unit: "PUT/s", Goal: ">= 2", Pass: false, Baseline: "peer", BaselineValue: 2, Ratio: 0.5},
		{Name: "start/y", Value: 3, Unit: "ms", Goal: "< 4", Pass: true},
	}
	if err := writeDoc(file, machine{cores: 2, pairs: 7, date: time.Unix(0, 0)}, rs, errors.New("memory: x")); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| x | 1 PUT/s | 2 (peer) | 0.50 | >= 2 | **short** |", "| y | 3 ms |", "- store/x is 1 PUT/s (0.50 of peer), goal >= 2", "1970-01-01", "## Where the time goes", "memory: x"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page lacks %q:\n%s", want, b)
		}
	}
}

func TestAskedIsByServiceAndKind(t *testing.T) {
	a := asked{}
	a.count("query", scraped{
		`lightmetrics_store_requests_total{family="journal",op="get",outcome="ok"}`:        30,
		`lightmetrics_store_requests_total{family="journal",op="get",outcome="not_found"}`: 10,
		`lightmetrics_store_requests_total{family="journal",op="delete",outcome="ok"}`:     5,
		`lightmetrics_other_total{op="get"}`:                                               7,
	})
	a.count("collector", scraped{`lightmetrics_store_requests_total{family="accepted",op="create",outcome="ok"}`: 20})
	// Half of a request rounds up, and kinds with less are left out.
	if got, want := a.per(15), "collector: create accepted 1, query: get journal 3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := a.paid(); got != 60 {
		t.Errorf("%v requests are paid, want those that delete left out", got)
	}
	if got := a.dollars(prices{write: 10, read: 1}); got != 240 {
		t.Errorf("%v dollars", got)
	}
	if got := a.minus(asked{{"query", "get", "journal"}: 40}).paid(); got != 20 {
		t.Errorf("%v requests are left", got)
	}
}

func TestBytesOfOthers(t *testing.T) {
	s := stored{}
	for key, n := range map[string]float64{
		"raw-blobs/v1/00/11/sha256=00": 1000, "raw-blobs-by-time/v1/date=2026-11-22/x": 10, "accepted/v1/agent=61/x": 20,
		"rollup/v1/window=raw/x": 5000, "rollup/v1/deltas/shard=0001/x": 400, "index/v1/x/y": 300, "rollup/v1/plans/shard=0001/x": 30,
		"journal/v1/run=00/1.lmj": 40, "journal/v1/head.json": 1, "authority.json": 2,
	} {
		s[familyOf(key)] += n
	}
	if frames, others := s.split(); frames != 1000 || others != 103 {
		t.Errorf("%v bytes of frames, %v of others: %v", frames, others, s)
	}
	if got, want := s.largest(1000), "rollup/v1/window= 5.00, raw-blobs/v1 1.00, rollup/v1/deltas 0.40, index/v1 0.30, journal/v1/run= 0.04, rollup/v1/plans 0.03, accepted/v1 0.02, raw-blobs-by-time/v1 0.01"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestPlantedBatchesAreRead: a follower that starts from nothing finds each planted batch once, in folded files, and
// no segment is left.
func TestPlantedBatchesAreRead(t *testing.T) {
	s := mem.New(time.Now)
	p := planted{boots: 70, batches: 2*plantedAtOnce + 100, until: time.Now(), span: time.Hour}
	if err := p.plant(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	got := map[identity.Batch]int{}
	f, err := journal.NewFollower(journal.FollowerConfig{
		Store: s, Authority: authority,
		Segment: func(context.Context, *journal.Segment) error { return errors.New("a segment is left") },
		Folded: func(_ context.Context, es []journal.Entry) error {
			for _, e := range es {
				got[e.ID]++
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(got) != p.batches || len(f.Runs()) != 0 {
		t.Errorf("%d batches of %d, %d runs are open", len(got), p.batches, len(f.Runs()))
	}
	for id, n := range got {
		if n != 1 {
			t.Fatalf("%s was read %d times", id, n)
		}
	}
}

func TestSlope(t *testing.T) {
	x := []float64{1000, 4000, 16000}
	for want, y := range map[float64][]float64{0: {7, 7, 7}, 1: {10, 40, 160}, 0.5: {10, 20, 40}} {
		if got := slopeOf(x, y); got < want-1e-9 || got > want+1e-9 {
			t.Errorf("the slope of %v is %v, want %v", y, got, want)
		}
	}
}

func TestLagsOfProbes(t *testing.T) {
	at := time.Unix(100, 0)
	p := &probes{acked: []time.Time{at, at, at}, seen: []time.Time{at.Add(3), at.Add(-5), at.Add(1)}}
	if got := p.lags(); !slices.Equal(got, []time.Duration{0, 1, 3}) {
		t.Errorf("%v", got)
	}
}
