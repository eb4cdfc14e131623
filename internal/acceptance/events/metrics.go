package events

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a service that takes events.
type Metrics struct {
	reg      prometheus.Registerer
	prefix   string
	messages *prometheus.CounterVec // source, result
	events   *prometheus.CounterVec // source, kind
	requests *prometheus.CounterVec // op, result
	deletes  *prometheus.CounterVec // result
}

// NewMetrics registers the metrics of a service, "reconciler" or "query". Those of a queue come with its consumer.
func NewMetrics(reg prometheus.Registerer, service string) *Metrics {
	m := &Metrics{reg: reg, prefix: "lightmetrics_" + service + "_event"}
	m.messages = prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + "_messages_total",
		Help: "Messages with events of the object store, by source (webhook, queue) and result: taken, test (the store tries its configuration), unknown."}, []string{"source", "result"})
	m.events = prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + "s_total",
		Help: "Events in them, by source and kind: segment (of the journal), accepted (a manifest), stale (older than 5 minutes), foreign (of another bucket or prefix), other."}, []string{"source", "kind"})
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + "_queue_requests_total",
		Help: "Rounds of receiving and deleting messages (receive), and questions for the length of the queue (length), by result."}, []string{"op", "result"})
	m.deletes = prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + "_queue_deletes_total",
		Help: "Messages that were to be deleted, by result; one that was not is delivered again, which is harmless."}, []string{"result"})
	reg.MustRegister(m.messages, m.events, m.requests, m.deletes)
	for _, source := range []string{fromWebhook, fromQueue} {
		m.messages.WithLabelValues(source, "unknown").Add(0)
	}
	return m
}

// follow shows the state of a consumer.
func (m *Metrics) follow(c *Consumer) {
	gauge := func(name, help string, value func() float64) {
		m.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: m.prefix + "_queue_" + name, Help: help}, value))
	}
	gauge("failing_seconds", "For how long the queue of events could not be read; 0 while it can.", func() float64 {
		failing, _, _ := c.state()
		return failing.Seconds()
	})
	gauge("age_seconds", "How long the oldest of the messages that were received last had waited in the queue.", func() float64 {
		_, age, _ := c.state()
		return age.Seconds()
	})
	gauge("messages", "Messages in the queue that nobody has received, about, asked for each minute.", func() float64 {
		_, _, n := c.state()
		return float64(n)
	})
}
