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
	moves     *prometheus.CounterVec // list
	probes    *prometheus.CounterVec // result

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

// Results of lightmetrics_agent_return_probes_total.
const (
	probeOK      = "ok"
	probeFailed  = "failed"
	probeRefused = "refused"
)

func newMetrics(reg prometheus.Registerer, onFallback func() float64) *metrics {
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
	m.moves = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lightmetrics_agent_list_changes_total", Help: "Changes to the fallback collectors, and back to the preferred ones, by the list that was changed to."}, []string{"list"})
	m.probes = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "lightmetrics_agent_return_probes_total", Help: "Streams to preferred collectors that were opened while a fallback one was used, by result; refused: it welcomed the agent and did not accept a batch."}, []string{"result"})
	for _, l := range []List{Preferred, Fallback} {
		m.moves.WithLabelValues(string(l))
	}
	for _, r := range []string{probeOK, probeFailed, probeRefused} {
		m.probes.WithLabelValues(r)
	}
	fallback := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lightmetrics_agent_fallback_seconds", Help: "How long the fallback collectors have been used; 0 while the preferred ones are."}, onFallback)
	reg.MustRegister(m.answers, m.sent, m.sentBytes, m.latency, m.sessions, m.errors, m.connected, m.inFlight, m.damaged, m.settled, m.wanted, m.clockOffset, m.moves, m.probes, fallback)
	return m
}

// know makes the metrics of a collector.
func (m *metrics) know(collector string) {
	m.sessions.WithLabelValues(collector)
	m.errors.WithLabelValues(collector)
	m.connected.WithLabelValues(collector)
}

// forget drops them when the settings have the collector no more.
func (m *metrics) forget(collector string) {
	m.sessions.DeleteLabelValues(collector)
	m.errors.DeleteLabelValues(collector)
	m.connected.DeleteLabelValues(collector)
}
