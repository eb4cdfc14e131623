package follow

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"lightmetrics.dev/lightmetrics/internal/queries/live"
)

type metrics struct {
	taken        *prometheus.CounterVec
	records      prometheus.Counter
	frameBytes   prometheus.Counter
	lateness     prometheus.Histogram
	audits       *prometheus.CounterVec
	auditSeconds *prometheus.HistogramVec
	pollFailures prometheus.Counter
	watchEnds    prometheus.Counter
	hints        prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, f *Follower) *metrics {
	p := promauto.With(reg)
	m := &metrics{
		taken: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_batches_total",
			Help: "Accepted batches that were taken, by outcome."}, []string{"outcome"}),
		records:    p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_records_total", Help: "Records that were inserted."}),
		frameBytes: p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_frame_bytes_total", Help: "Bytes of frames that were inserted."}),
		lateness: p.NewHistogram(prometheus.HistogramOpts{Name: "lightmetrics_query_visible_seconds",
			Help:    "Time from acceptance (the collector's clock) to being queryable here.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}}),
		audits: p.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_query_audits_total",
			Help: "Audits, by scope and outcome."}, []string{"scope", "outcome"}),
		auditSeconds: p.NewHistogramVec(prometheus.HistogramOpts{Name: "lightmetrics_query_audit_seconds",
			Help: "Time of an audit.", Buckets: prometheus.ExponentialBuckets(.005, 4, 10)}, []string{"scope"}),
		pollFailures: p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_poll_failures_total", Help: "Polls of accepted-by-time that failed."}),
		watchEnds:    p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_watch_ends_total", Help: "Watches of reconcilers that ended."}),
		hints:        p.NewCounter(prometheus.CounterOpts{Name: "lightmetrics_query_hints_total", Help: "Manifests that a watch named."}),
	}
	gauge := func(name, help string, fn func() float64) {
		p.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, fn)
	}
	gauge("lightmetrics_query_complete_through_timestamp_seconds", "Everything accepted before it is accounted for; 0 before the first audit.", func() float64 {
		if t := f.Status().CompleteThrough; !t.IsZero() {
			return float64(t.UnixMilli()) / 1e3
		}
		return 0
	})
	gauge("lightmetrics_query_unreadable_batches", "Accepted batches that can't be read.", func() float64 { return float64(f.Status().Unread) })
	gauge("lightmetrics_query_boots", "Known (agent, boot) pairs.", func() float64 { return float64(f.Status().Boots) })
	stat := func(name, help string, fn func(live.Stats) float64) {
		gauge(name, help, func() float64 { return fn(f.d.Live.Stats()) })
	}
	stat("lightmetrics_query_live_series", "Series in memory.", func(s live.Stats) float64 { return float64(s.Series) })
	stat("lightmetrics_query_live_samples", "Records in memory.", func(s live.Stats) float64 { return float64(s.Samples) })
	stat("lightmetrics_query_live_batches", "Batches in memory.", func(s live.Stats) float64 { return float64(s.Batches) })
	stat("lightmetrics_query_live_bytes", "Estimated heap bytes of the data in memory.", func(s live.Stats) float64 { return float64(s.Bytes) })
	evicted := func(why string, fn func(live.Evicted) uint64) {
		p.NewCounterFunc(prometheus.CounterOpts{Name: "lightmetrics_query_live_evicted_batches_total",
			Help:        "Batches that were evicted because a memory bound was exceeded, by reason.",
			ConstLabels: prometheus.Labels{"reason": why}}, func() float64 { return float64(fn(f.d.Live.Stats().Evicted)) })
	}
	evicted("future", func(e live.Evicted) uint64 { return e.Future })
	evicted("agent_share", func(e live.Evicted) uint64 { return e.Agent })
	evicted("oldest", func(e live.Evicted) uint64 { return e.Oldest })
	return m
}

func (m *metrics) audit(full bool, err error, took time.Duration) {
	scope, outcome := "frontier", "ok"
	if full {
		scope = "full"
	}
	if err != nil {
		outcome = "failed"
	}
	m.audits.WithLabelValues(scope, outcome).Inc()
	m.auditSeconds.WithLabelValues(scope).Observe(took.Seconds())
}

func (m *metrics) inserted(o live.Outcome, frameBytes int, records uint64) {
	switch o {
	case live.Inserted:
		m.taken.WithLabelValues("inserted").Inc()
		m.records.Add(float64(records))
		m.frameBytes.Add(float64(frameBytes))
	case live.Repeat:
		m.taken.WithLabelValues("repeat").Inc()
	case live.Expired:
		m.taken.WithLabelValues("expired").Inc()
	}
}

func (m *metrics) lag(d time.Duration) { m.lateness.Observe(positive(d).Seconds()) }
