package coordinator

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
)

// identityMetrics are those of the identity linearizer; there are none without regions.
type identityMetrics struct {
	operations *prometheus.CounterVec // operation, outcome
	ops        prometheus.Counter
	took       prometheus.Histogram
	failed     prometheus.Counter
	opens      *prometheus.CounterVec // result
	folded     prometheus.Counter
	forgotten  prometheus.Counter
	foldsAway  prometheus.Counter
	foldsFail  prometheus.Counter
	manifests  prometheus.Gauge
	claims     prometheus.Gauge
}

func newIdentityMetrics() *identityMetrics {
	const p = "lightmetrics_coordinator_identity_"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: p + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: p + name, Help: help})
	}
	m := &identityMetrics{
		operations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "operations_total", Help: "Operations on claims, by operation and outcome; an outcome in lower case is a refusal."}, []string{"operation", "outcome"}),
		ops:        counter("transaction_operations_total", "Operations in transactions; divided by those it is how many share one."),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: p + "transaction_seconds", Help: "How long transactions of etcd took that claims were changed by.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		failed:    counter("transactions_failed_total", "Transactions without an answer."),
		opens:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "opens_total", Help: "Attempts to open the epoch, by result: ok, failed."}, []string{"result"}),
		folded:    counter("folded_total", "Settled claims that moved into the regions' buckets."),
		forgotten: counter("forgotten_boots_total", "Boots without claims that etcd has forgotten."),
		foldsAway: counter("folds_partial_total", "Folds that did not reach every region."),
		foldsFail: counter("folds_failed_total", "Folds that failed; etcd keeps their claims."),
		manifests: gauge("recovery_manifests", "Manifests that the last recovery has read so far."),
		claims:    gauge("recovery_claims", "Claims that the last recovery has inserted so far."),
	}
	for _, r := range []string{"ok", "failed"} {
		m.opens.WithLabelValues(r)
	}
	return m
}

// register adds them, and what v says of itself.
func (m *identityMetrics) register(reg prometheus.Registerer, v func() *identities) {
	const p = "lightmetrics_coordinator_identity_"
	of := func(name, help string, fn func(*opened) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: p + name, Help: help}, func() float64 {
			if i := v(); i != nil {
				if o := i.open.Load(); o != nil {
					return fn(o)
				}
			}
			return 0
		})
	}
	reg.MustRegister(m.operations, m.ops, m.took, m.failed, m.opens, m.folded, m.forgotten, m.foldsAway, m.foldsFail, m.manifests, m.claims,
		of("open", "1 while this coordinator answers for identities.", func(*opened) float64 { return 1 }),
		of("epoch", "Epoch of the claims; 0 while it is not open.", func(o *opened) float64 { return float64(o.Epoch.Number) }),
		of("waiting", "Operations that are not answered.", func(o *opened) float64 { return float64(o.l.Waiting()) }))
}

func (m *identityMetrics) progress(p regions.Progress) {
	m.manifests.Set(float64(p.Manifests))
	m.claims.Set(float64(p.Claims))
}

func (m *identityMetrics) transaction(ops int, took time.Duration, err error) {
	m.ops.Add(float64(ops))
	m.took.Observe(took.Seconds())
	if err != nil {
		m.failed.Inc()
	}
}

func (m *identityMetrics) operation(op claims.Op, r linearizer.Result) {
	m.operations.WithLabelValues(op.Kind.String(), outcomeOf(r)).Inc()
}

// outcomeOf is a result as a label.
func outcomeOf(r linearizer.Result) string {
	switch {
	case r.Err == nil:
		return r.Answer.Outcome.String()
	case errors.Is(r.Err, claims.ErrUnknown):
		return "unknown"
	case errors.Is(r.Err, claims.ErrEpoch):
		return "epoch"
	case errors.Is(r.Err, claims.ErrInvalid):
		return "invalid"
	case errors.Is(r.Err, claims.ErrTooMany), errors.Is(r.Err, claims.ErrFull), errors.Is(r.Err, claims.ErrBusy):
		return "busy"
	}
	return "unavailable"
}
