package events

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a service that takes events.
type Metrics struct {
	reg      prometheus.Registerer
	messages *prometheus.CounterVec // source, result
	objects  *prometheus.CounterVec // source, kind
	requests *prometheus.CounterVec // op, result
	deletes  *prometheus.CounterVec // result
}

// NewMetrics registers the metrics. Those of a queue come with its consumer.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{reg: reg}
	m.messages = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_event_messages_total",
		Help: "Messages with events of the object store, by source (webhook, queue) and result: taken, test (the store tries its configuration), unknown."}, []string{"source", "result"})
	m.objects = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_event_objects_total",
		Help: "Objects that they name, by source and kind: segment (of the journal), accepted (a manifest), stale (older than 5 minutes), foreign (of another bucket or prefix), other."}, []string{"source", "kind"})
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_event_queue_requests_total",
		Help: "Rounds of receiving and deleting messages (receive), and questions for the length of the queue (length), by result."}, []string{"op", "result"})
	m.deletes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lightmetrics_event_queue_deletes_total",
		Help: "Messages that were to be deleted, by result; one that was not is delivered again, which is harmless."}, []string{"result"})
	reg.MustRegister(m.messages, m.objects, m.requests, m.deletes)
	for _, source := range []string{fromWebhook, fromQueue} {
		m.messages.WithLabelValues(source, "unknown").Add(0)
	}
	return m
}

// follow shows the state of a consumer.
func (m *Metrics) follow(c *Consumer) {
	gauge := func(name, help string, value func() float64) {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	gauge("lightmetrics_event_queue_failing_seconds", "For how long the queue of events could not be read; 0 while it can.", func() float64 {
		failing, _, _ := c.state()
		return failing.Seconds()
	})
	gauge("lightmetrics_event_queue_age_seconds", "How long the oldest of the messages that were received last had waited in the queue.", func() float64 {
		_, age, _ := c.state()
		return age.Seconds()
	})
	gauge("lightmetrics_event_queue_messages", "Messages in the queue that nobody has received, about, asked for each minute.", func() float64 {
		_, _, n := c.state()
		return float64(n)
	})
}
