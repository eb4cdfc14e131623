package sqs_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"lightmetrics.dev/lightmetrics/internal/acceptance/events"
	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs"
	"lightmetrics.dev/lightmetrics/internal/acceptance/events/sqs/sqstest"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

func TestQueue(t *testing.T) {
	s := sqstest.Start(t)
	defer http.DefaultClient.CloseIdleConnections()
	sqstest.Run(t, s.URL)
}

// TestCredentials: those of the queue, or else the store's; never the machine's while either is there.
func TestCredentials(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "of-the-machine")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	var seen []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, rest, _ := strings.Cut(r.Header.Get("Authorization"), "Credential=")
		scope, _, _ := strings.Cut(rest, ",")
		parts := strings.Split(scope, "/")
		seen = append(seen, parts[0]+" "+parts[2])
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.Write([]byte("{}"))
	}))
	defer srv.Close()
	ask := func(cfg events.Queue, store s3.Config) {
		t.Helper()
		cfg.URL, cfg.Wait, cfg.Visibility = srv.URL+"/000000000000/q", 1e9, 1e9
		q, err := sqs.Open(t.Context(), cfg, store)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		if _, err := q.Receive(t.Context()); err != nil {
			t.Error(err)
		}
	}
	store := s3.DefaultConfig()
	store.Region, store.AccessKeyID, store.SecretAccessKey = "eu-central-1", "of-the-store", config.Secret("s")
	ask(events.Queue{}, store)
	ask(events.Queue{Region: "eu-west-1", AccessKeyID: "of-the-queue", SecretAccessKey: "s"}, store)
	store.AccessKeyID, store.SecretAccessKey = "", ""
	ask(events.Queue{AccessKeyID: "of-the-queue", SecretAccessKey: "s"}, store)
	ask(events.Queue{}, store)
	if got := strings.Join(seen, ", "); got != "of-the-store eu-central-1, of-the-queue eu-west-1, of-the-queue eu-central-1, of-the-machine eu-central-1" {
		t.Error(got)
	}
}

// TestAnswersAreBounded: a server that never ends an answer takes no memory.
func TestAnswersAreBounded(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		w.Write([]byte(`{"Messages":[{"Body":"`))
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}))
	defer srv.Close()
	q, err := sqs.Open(t.Context(), events.Queue{URL: srv.URL + "/0/q", Wait: 1e9, AccessKeyID: "k", SecretAccessKey: "s"}, s3.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var tooLarge *http.MaxBytesError
	if _, err := q.Receive(t.Context()); !errors.As(err, &tooLarge) || !strings.Contains(err.Error(), srv.URL+"/0/q") {
		t.Errorf("%v", err)
	}
}
