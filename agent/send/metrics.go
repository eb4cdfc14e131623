package send

import (
	"github.com/prometheus/client_golang/prometheus"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
)

type metrics struct {
	answers   *prometheus.CounterVec
	sent      prometheus.Counter
	sentBytes prometheus.Counter
	latency   prometheus.Histogram
	sessions  *prometheus.CounterVec
	errors    *prometheus.CounterVec
	connected *prometheus.GaugeVec
	inFlight  prometheus.Gauge
	damaged   prometheus.Counter
	settled   *prometheus.CounterVec // action
	wanted    prometheus.Counter

	clockOffset prometheus.Gauge
}

// Statuses of lightmetrics_agent_batches_total.
const (
	statusAccepted  = "accepted"
	statusDuplicate = "duplicate"
	statusConflict  = "identity_conflict"
	statusRejected  = "rejected"
	statusRetry     = "retry"
	statusUnknown   = "unknown"
)

func newMetrics(reg prometheus.Registerer, collectors []string) *metrics {
	m := &metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lightmetrics_agent_batches_total", Help: "Answers of collectors to batches, by status."}, []string{"status"}),
		sent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lightmetrics_agent_sent_batches_total", Help: "Batches handed to a stream, repeats included."}),
		sentBytes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lightmetrics_agent_sent_bytes_total", Help: "Frame bytes handed to a stream, repeats included."}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lightmetrics_agent_answer_seconds", Help: "Time from handing a batch to a stream to its answer.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}),
		sessions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lightmetrics_agent_streams_total", Help: "Streams that a collector has welcomed, by collector."}, []string{"collector"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lightmetrics_agent_stream_errors_total", Help: "Streams that failed, by collector."}, []string{"collector"}),
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lightmetrics_agent_connected", Help: "1 for the collector with an open stream."}, []string{"collector"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "lightmetrics_agent_in_flight_batches", Help: "Batches that wait for an answer."}),
	}
	m.damaged = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "lightmetrics_agent_damaged_batches_total", Help: "Queued batches that were dropped because their bytes on disk are damaged."})
	m.clockOffset = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lightmetrics_agent_clock_offset_seconds", Help: "How far the collectors' clock is ahead of this machine's, at least; below 0 it is behind."})
	m.settled = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lightmetrics_agent_conflicts_settled_total", Help: "Parked batches that were dropped (accept_existing) or queued under new numbers (keep_both) by an operator's decision."}, []string{"action"})
	m.wanted = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "lightmetrics_agent_wanted_frames_sent_total", Help: "Parked frames that were sent to a collector again, because the store has lost its copy."})
	for _, a := range []resolution.Action{resolution.AcceptExisting, resolution.KeepBoth} {
		m.settled.WithLabelValues(string(a))
	}
	for _, s := range []string{statusAccepted, statusDuplicate, statusConflict, statusRejected, statusRetry, statusUnknown} {
		m.answers.WithLabelValues(s)
	}
	for _, c := range collectors {
		m.sessions.WithLabelValues(c)
		m.errors.WithLabelValues(c)
		m.connected.WithLabelValues(c)
	}
	reg.MustRegister(m.answers, m.sent, m.sentBytes, m.latency, m.sessions, m.errors, m.connected, m.inFlight, m.damaged, m.settled, m.wanted, m.clockOffset)
	return m
}
