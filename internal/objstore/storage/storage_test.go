package storage

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/fault"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/objstore/storetest"
	"lightmetrics.dev/lightmetrics/internal/platform/retry"
)

var quick = objstore.Policy{Timeout: time.Minute, Retry: retry.Policy{Attempts: 3, Base: 1, Cap: 1}}

func TestConformance(t *testing.T) {
	storetest.Run(t, func(t *testing.T) objstore.Store {
		s, err := Wrap(mem.New(nil), Options{Process: "test", Registry: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, storetest.Features{})
}

// Every request counts, and each that another one follows counts as that too.
func TestRequestsAndRetriesAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	f := fault.New(mem.New(nil), 1, fault.LostAnswer("create", "").Once(), fault.NotApplied("list", ""))
	s, err := Wrap(f, Options{Registry: reg, Policy: quick})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), "boots/v1/x", nil, objstore.PutOptions{}); !errors.Is(err, objstore.ErrExists) || !errors.Is(err, objstore.ErrUnknown) {
		t.Errorf("create: %v", err)
	}
	if _, err := s.List(t.Context(), objstore.ListOptions{Prefix: "accepted/"}); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("list: %v", err)
	}
	if _, err := s.Head(t.Context(), "boots/v1/x"); err != nil {
		t.Errorf("head: %v", err)
	}
	err = testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP lightmetrics_store_requests_total Requests to the object store, by operation, key family and outcome.
# TYPE lightmetrics_store_requests_total counter
lightmetrics_store_requests_total{family="accepted",op="list",outcome="unavailable"} 3
lightmetrics_store_requests_total{family="boots",op="create",outcome="exists"} 1
lightmetrics_store_requests_total{family="boots",op="create",outcome="unknown"} 1
lightmetrics_store_requests_total{family="boots",op="head",outcome="ok"} 1
# HELP lightmetrics_store_retries_total Requests to the object store that were followed by another attempt, by operation and key family.
# TYPE lightmetrics_store_retries_total counter
lightmetrics_store_retries_total{family="accepted",op="list"} 2
lightmetrics_store_retries_total{family="boots",op="create"} 1
`), "lightmetrics_store_requests_total", "lightmetrics_store_retries_total")
	if err != nil {
		t.Error(err)
	}
}

func TestSettingsAreRefused(t *testing.T) {
	if _, err := Wrap(mem.New(nil), Options{Policy: objstore.Policy{Timeout: -1, Retry: quick.Retry}}); err == nil {
		t.Error("a negative timeout is taken")
	}
	if _, err := Open(t.Context(), s3.Config{}, Options{}); err == nil {
		t.Error("no bucket is taken")
	}
	reg := prometheus.NewRegistry()
	for i := range 2 {
		if _, err := Wrap(mem.New(nil), Options{Registry: reg}); (err == nil) != (i == 0) {
			t.Errorf("store %d of one registry: %v", i, err)
		}
	}
}
