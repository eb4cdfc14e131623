package peerframes

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics of a follower that takes frames from collectors.
type Metrics struct {
	frames   *prometheus.CounterVec // outcome
	failures *prometheus.CounterVec // reason
	bytes    prometheus.Counter
}

// NewMetrics registers the metrics of a service, "query" or "rollup". All of them begin at 0.
func NewMetrics(reg prometheus.Registerer, service string) *Metrics {
	p := promauto.With(reg)
	name := func(n string) string { return "lightmetrics_" + service + "_" + n }
	m := &Metrics{
		frames: p.NewCounterVec(prometheus.CounterOpts{Name: name("peer_frames_total"),
			Help: "Frames that a collector was asked for, by outcome: taken, missing (it does not have them any more), failed (the call did). But for those taken the store is asked."}, []string{"outcome"}),
		failures: p.NewCounterVec(prometheus.CounterOpts{Name: name("peer_failures_total"),
			Help: "Calls for frames at collectors that failed, by reason."}, []string{"reason"}),
		bytes: p.NewCounter(prometheus.CounterOpts{Name: name("peer_frame_bytes_total"), Help: "Bytes of frames that were taken from collectors."}),
	}
	for _, outcome := range []string{"taken", "missing", "failed"} {
		m.frames.WithLabelValues(outcome)
	}
	for _, r := range reasons() {
		m.failures.WithLabelValues(string(r))
	}
	return m
}
