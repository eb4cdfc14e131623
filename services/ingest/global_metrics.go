package ingest

import "github.com/prometheus/client_golang/prometheus"

// globalMetrics are those of acceptance global.
type globalMetrics struct {
	changes *prometheus.CounterVec // operation, outcome
	settles *prometheus.CounterVec // outcome
	took    prometheus.Histogram
	denied  prometheus.Gauge

	affirmed, takenOver, replaced, restored prometheus.Counter
}

func newGlobalMetrics() *globalMetrics {
	const p = "lightmetrics_ingest_"
	one := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: p + name, Help: help})
	}
	m := &globalMetrics{
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "claim_changes_total", Help: "Changes of claims that the identity linearizer was asked for, by operation and outcome; failed: without an answer, or refused; not_asked: it had left calls without an answer."}, []string{"operation", "outcome"}),
		settles: prometheus.NewCounterVec(prometheus.CounterOpts{Name: p + "claim_settles_total", Help: "Claims of answered batches, by what became of their settling: settled, moved, failed, dropped. The reconciler settles what is left."}, []string{"outcome"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{Name: p + "claim_change_seconds", Help: "How long the identity linearizer took for a change, with all attempts.",
			Buckets: ackBuckets}),
		denied: prometheus.NewGauge(prometheus.GaugeOpts{Name: p + "linearizer_denied",
			Help: "1 while the identity linearizer refuses this collector's credentials, or that it acts for its region, or the region takes no part, or it was dissolved: it is not ready; else 0."}),
		affirmed:  one("affirmations_total", "Manifests of earlier claims that were written to stand for later ones."),
		takenOver: one("claims_taken_over_total", "Claims of other regions that this one took over."),
		replaced:  one("claims_replaced_total", "Claims that were made ones for the frame that the region has."),
		restored:  one("manifests_restored_total", "Manifests of this region that the linearizer knew of and the bucket did not have."),
	}
	for _, o := range []string{"settled", "moved", "failed", "dropped"} {
		m.settles.WithLabelValues(o)
	}
	return m
}

func (m *globalMetrics) register(r prometheus.Registerer, l *claimer) {
	waiting := func() float64 { return float64(len(l.settles)) }
	away := func() float64 {
		if l.breaker.open() {
			return 1
		}
		return 0
	}
	r.MustRegister(m.changes, m.settles, m.took, m.denied, m.affirmed, m.takenOver, m.replaced, m.restored,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_ingest_claim_settles_waiting", Help: "Answered batches whose claims wait to be settled."}, waiting),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "lightmetrics_ingest_linearizer_away", Help: "1 while the identity linearizer leaves calls without an answer, so that senders are told to try again without asking it; else 0."}, away))
}
