// Package storage opens the object store of a process with everything between the process
// and the bucket: failpoints, metrics, a deadline for each request, and further attempts at
// operations that may then succeed.
package storage

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/failstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/s3"
	"lightmetrics.dev/lightmetrics/internal/platform/run"
)

// Options of a process's store.
type Options struct {
	// Process names the failpoints, as in failstore.Register; empty has none.
	Process string
	// Registry takes the metrics lightmetrics_store_*; nil has none.
	Registry prometheus.Registerer
	// Policy replaces the one of the settings, unless it is zero.
	Policy objstore.Policy
}

// credentialsTimeout bounds the search for credentials and endpoint.
const credentialsTimeout = 30 * time.Second

// Open opens the bucket; it sends no request to it.
func Open(ctx context.Context, cfg s3.Config, o Options) (objstore.Store, error) {
	// Finding credentials may send requests to a metadata service that never answers.
	ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	defer cancel()
	s, err := s3.New(ctx, cfg, s3.Options{})
	if err != nil {
		return nil, err
	}
	if o.Policy == (objstore.Policy{}) {
		o.Policy = cfg.Policy()
	}
	return Wrap(s, o)
}

// Wrap decorates s as Open does; the zero policy means objstore.DefaultPolicy.
//
// The order of the decorators matters. Failpoints are innermost, where an answer can be
// lost. Metrics are around them and count every request, including those of further attempts.
func Wrap(s objstore.Store, o Options) (objstore.Store, error) {
	if o.Policy == (objstore.Policy{}) {
		o.Policy = objstore.DefaultPolicy()
	}
	if err := o.Policy.Validate(); err != nil {
		return nil, err
	}
	if o.Process != "" {
		s = failstore.Wrap(s, o.Process)
	}
	var retried func(objstore.Op, error)
	if o.Registry != nil {
		m := newMetrics()
		for _, c := range []prometheus.Collector{m.requests, m.seconds, m.retries} {
			if err := o.Registry.Register(c); err != nil {
				return nil, fmt.Errorf("metrics of the store: %w", err)
			}
		}
		s = objstore.Observe(s, m.observe, time.Now)
		retried = m.retried
	}
	return objstore.WithPolicy(s, o.Policy, run.WallClock{}, rand.Float64, retried), nil
}

type metrics struct {
	requests *prometheus.CounterVec   // op, family, outcome
	seconds  *prometheus.HistogramVec // op
	retries  *prometheus.CounterVec   // op, family

	mu    sync.RWMutex
	kinds map[kind]counted
}

func newMetrics() *metrics {
	return &metrics{
		kinds: map[kind]counted{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lightmetrics_store_requests_total", Help: "Requests to the object store, by operation, key family and outcome.",
		}, []string{"op", "family", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lightmetrics_store_request_duration_seconds", Help: "Time of a request to the object store, by operation.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
		}, []string{"op"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lightmetrics_store_retries_total", Help: "Requests to the object store that were followed by another attempt, by operation and key family.",
		}, []string{"op", "family"}),
	}
}

// observe is an objstore.Observer.
func (m *metrics) observe(op, family string, took time.Duration, err error) {
	to := m.of(kind{op, family, outcome(err)})
	to.requests.Inc()
	to.seconds.Observe(took.Seconds())
}

// kind is what requests are counted by.
type kind struct{ op, family, outcome string }

// counted is where requests of a kind are counted.
type counted struct {
	requests prometheus.Counter
	seconds  prometheus.Observer
}

// maxKinds bounds the kinds that are remembered: a key that the store refuses may begin with anything.
const maxKinds = 1024

// of gives where a kind is counted. It is remembered, since to find it by its labels costs more than to count.
func (m *metrics) of(k kind) counted {
	m.mu.RLock()
	c, ok := m.kinds[k]
	m.mu.RUnlock()
	if ok {
		return c
	}
	c = counted{m.requests.WithLabelValues(k.op, label(k.family), k.outcome), m.seconds.WithLabelValues(k.op)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.kinds) < maxKinds {
		// A copy: the family is a part of a key, which it would keep.
		m.kinds[kind{k.op, strings.Clone(k.family), k.outcome}] = c
	}
	return c
}

func (m *metrics) retried(op objstore.Op, _ error) {
	m.retries.WithLabelValues(op.Name, label(objstore.Family(op.Key))).Inc()
}

// label replaces invalid UTF-8 in a key's family, which Prometheus refuses in a label. Keys that the store will refuse are counted, too.
func label(family string) string { return strings.ToValidUTF8(family, "?") }

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	// The order matters where an error wraps several: "exists" after an unknown attempt counts as
	// exists, and a context error as the unknown or unavailable that it wraps.
	for _, o := range []struct {
		err  error
		name string
	}{
		{objstore.ErrNotFound, "not_found"}, {objstore.ErrExists, "exists"},
		{objstore.ErrPreconditionFailed, "precondition_failed"}, {objstore.ErrConflict, "conflict"},
		{objstore.ErrUnknown, "unknown"}, {objstore.ErrUnavailable, "unavailable"},
		{objstore.ErrChecksum, "checksum"}, {objstore.ErrDenied, "denied"},
		{objstore.ErrNoBucket, "no_bucket"}, {objstore.ErrInvalid, "invalid"},
		{context.Canceled, "canceled"}, {context.DeadlineExceeded, "deadline"},
	} {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	return "error"
}
