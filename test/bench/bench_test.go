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
