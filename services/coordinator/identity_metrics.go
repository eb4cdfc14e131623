package coordinator

import (
	"errors"
	"strings"
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

// register adds them, and what v says of itself; names are the regions of the settings.
func (m *identityMetrics) register(reg prometheus.Registerer, names []claims.Region, v func() *identities) {
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
	reg.MustRegister(newIdentityState(names, v), m.operations, m.ops, m.took, m.failed, m.opens, m.folded, m.forgotten, m.foldsAway, m.foldsFail, m.manifests, m.claims,
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

// identityState shows why the linearizer is closed, and what claims there are.
type identityState struct {
	names []claims.Region
	v     func() *identities

	closed, waits, claims, oldest, unreadable, lag, counted *prometheus.Desc
}

func newIdentityState(names []claims.Region, v func() *identities) *identityState {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("lightmetrics_coordinator_identity_"+name, help, labels, nil)
	}
	return &identityState{
		names: names, v: v,
		closed:     d("closed", "1 for the reason why this coordinator does not answer for identities; 0 for all reasons while it does.", "reason"),
		waits:      d("waits_for_region", "1 while this coordinator can't open the epoch before this region's bucket answers with records that can be read.", "region"),
		claims:     d("claims", "Claims in etcd, by home region and state, as the last round of folding counted them; on the coordinator that folds alone.", "region", "state"),
		oldest:     d("oldest_claim_seconds", "For how long the oldest claim of a home region has been in its state; 0 without one.", "region", "state"),
		unreadable: d("unreadable_claims", "Claims in etcd that no release of this epoch wrote."),
		lag:        d("fold_lag_seconds", "For how long claims have been due to be folded that could not be; 0 while folds keep up."),
		counted:    d("counted_timestamp_seconds", "When the claims were counted, Unix time."),
	}
}

// Describe implements prometheus.Collector.
func (s *identityState) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{s.closed, s.waits, s.claims, s.oldest, s.unreadable, s.lag, s.counted} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *identityState) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	v := s.v()
	c := &closure{reason: closedEtcd} // it has not answered since the start
	if v != nil {
		c = v.closure()
	}
	for _, r := range closedReasons {
		gauge(s.closed, number(c != nil && c.reason == r), string(r))
	}
	for _, n := range s.names {
		gauge(s.waits, number(c != nil && c.reason == closedRegion && c.region == n), string(n))
	}
	if v == nil {
		return
	}
	seen := v.census.Load()
	if seen == nil {
		return
	}
	age := func(since int64, there bool) float64 {
		if !there {
			return 0
		}
		return max(v.now().Sub(time.Unix(0, since)).Seconds(), 0)
	}
	for _, n := range s.names {
		for _, st := range []claims.State{claims.Claimed, claims.Durable, claims.Settled} {
			k := censusKey{n, st}
			since, there := seen.oldest[k]
			gauge(s.claims, float64(seen.counts[k]), string(n), strings.ToLower(st.String()))
			gauge(s.oldest, age(since, there), string(n), strings.ToLower(st.String()))
		}
	}
	gauge(s.unreadable, float64(seen.unreadable))
	gauge(s.lag, age(seen.unfolded, seen.unfolded != 0))
	gauge(s.counted, float64(seen.at.Unix()))
}
